"""Translation with a trained model, and the scores of translations."""
