"""Updates: what becomes of gradients between a training step and its next: accumulated, averaged by blocks, scaled."""
