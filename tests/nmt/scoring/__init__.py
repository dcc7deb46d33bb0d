"""Metrics and perplexity."""
