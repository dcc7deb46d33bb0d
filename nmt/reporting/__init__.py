"""What a run tells: log, TensorBoard summaries, progress, learning curve, pictures of attention."""
