"""A small English-German corpus made by rule, for demonstrations and tests."""
