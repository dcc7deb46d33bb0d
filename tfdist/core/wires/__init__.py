"""Wire formats of gradients: a module for each format, and the table of formats."""
