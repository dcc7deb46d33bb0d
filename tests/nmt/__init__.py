"""Tests of the translation package."""
