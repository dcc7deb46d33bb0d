"""Hooks where files are saved: if several ranks save to one path, one of them writes it."""
