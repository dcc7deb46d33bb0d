"""Base of all other packages: errors for the user, atomic and partial files, locks, the ranks of a run."""
