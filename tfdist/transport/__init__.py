"""The ranks: how they are found, send messages, share memory, notice a stall. mpi4py is used here alone."""
