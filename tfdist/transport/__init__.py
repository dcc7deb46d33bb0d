"""Interfaces of ranks, groups, nodes and channels; agreement between ranks; stall detection; saves by several ranks."""
