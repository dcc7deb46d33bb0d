"""``tfdist-run``: finds the MPI's mpirun, binds ranks, asks the hosts, prefixes lines, passes signals on."""
