"""Translation with a trained model: greedy and beam search, sampling, whole files."""
