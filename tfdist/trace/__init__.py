"""What the ranks' flight recorders hold, side by side: where they differ, who was late, and a Chrome trace of it."""
