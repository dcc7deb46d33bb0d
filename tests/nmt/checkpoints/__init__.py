"""Checkpoints, and which of them are kept."""
