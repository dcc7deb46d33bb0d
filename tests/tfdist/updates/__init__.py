"""What becomes of gradients between a training step and its next."""
