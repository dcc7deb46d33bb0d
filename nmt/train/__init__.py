"""Training: the step, its schedule, the loop, and evaluation at its milestones."""
