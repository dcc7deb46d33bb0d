"""What everything stands on: a user's errors, files written whole or in parts, locks, the ranks of a run."""
