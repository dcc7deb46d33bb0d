"""Processes: a rank as a process of its machine, with its launcher, watchdog, children, state and end."""
