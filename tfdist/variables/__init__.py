"""Variables: what the ranks hold, in sessions and outside: read and set, one rank's for all, compared."""
