"""How good a model is: perplexity, BLEU and the other scores of translations."""
