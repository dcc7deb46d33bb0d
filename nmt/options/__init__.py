"""Every option of the program, each stated once: its flag, its check, and the setting it makes."""
