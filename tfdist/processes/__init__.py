"""Processes: a rank as the machine sees it: its launcher, its watchdog, its children, its state and its end."""
