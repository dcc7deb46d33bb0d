"""The whole program."""
