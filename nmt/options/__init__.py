"""Every option of the program, once: a new one is a line in a `*_options.py` (flag, check, help, setting)."""
