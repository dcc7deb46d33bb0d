"""Errors, files, ranks."""
