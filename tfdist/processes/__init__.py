"""Processes: a rank as a process of its machine, with its launcher, companion, children, state and end."""
