"""Wire formats: a module for each format, and the table of formats."""
