"""Gradients: where a gradient becomes the average of the ranks, marks, rewrite, averages of tensors and of rows."""
