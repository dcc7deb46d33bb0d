"""What everything stands on: a user's errors, files written whole, the ranks of a run."""
