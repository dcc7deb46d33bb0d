"""The command line, and the part that each option sets."""
