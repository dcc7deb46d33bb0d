"""Checkpoints: what stays of a training, its checkpoints, their averages, the models of the best scores."""
