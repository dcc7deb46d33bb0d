"""Training: the training step, the learning rate schedule, the training loop, and evaluation during training."""
