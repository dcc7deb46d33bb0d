"""Processes: a rank as the machine sees it: its launcher, its keeper, its children, its state and its end."""
