"""Arrays of all ranks -> one array: buckets, all-reduce, sparse rows, and which engine does it fastest."""
