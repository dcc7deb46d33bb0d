"""MPI: ranks that an MPI launcher has started, their messages and shared memory. Only this package uses mpi4py."""
