"""Output of a run: log, TensorBoard summaries, progress, learning curve, pictures of attention."""
