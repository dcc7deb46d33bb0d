"""Checkpoints and what is kept of them."""
