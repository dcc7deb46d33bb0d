"""How gradients travel: a module for each format, and the table of them."""
