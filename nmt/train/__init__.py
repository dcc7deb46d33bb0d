"""Training: the step, its schedule, and all that surrounds it."""
