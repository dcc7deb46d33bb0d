"""Checkpoints of a training, their averages, and the models with the best scores."""
