"""The corpus made by rule."""
