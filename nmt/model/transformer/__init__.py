"""Transformer: an encoder-decoder model based on attention only."""
