"""The ranks: how they are found, send messages, share memory and notice a stall. MPI is used here alone."""
