"""Quality of a model: perplexity, and BLEU and other scores of translations."""
