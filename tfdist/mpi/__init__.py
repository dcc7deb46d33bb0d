"""MPI: ranks that it has started, their messages and the memory they share. mpi4py is used here alone."""
