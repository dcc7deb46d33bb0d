"""What a run reports."""
