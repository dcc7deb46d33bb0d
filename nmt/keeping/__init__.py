"""What stays of a training: checkpoints, their averages, the models of the best scores."""
