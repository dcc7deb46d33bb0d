"""Search, and files of translations."""
