"""``tfdist-run``: finds the MPI's mpirun, checks the hosts, binds ranks, prefixes lines, forwards signals."""
