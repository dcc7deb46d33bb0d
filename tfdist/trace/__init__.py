"""Comparison of the ranks' flight recorders: where ranks differ, which ranks were late, and a Chrome trace."""
