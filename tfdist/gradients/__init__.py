"""Gradients: how they become averages of the ranks. Marks, rewrite, raw writes, averages of tensors and of rows."""
