"""Hooks where files are saved: of the ranks that save one path, one writes it."""
