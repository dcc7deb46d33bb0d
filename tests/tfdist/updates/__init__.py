"""What happens to gradients between the training steps."""
