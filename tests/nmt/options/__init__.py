"""The command line, and where each option goes."""
