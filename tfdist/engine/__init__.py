"""Combining the arrays of all ranks: buckets, all-reduce, sparse rows, and the choice of the fastest engine."""
