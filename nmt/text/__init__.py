"""Text input and output: tokens, vocabularies, corpora, the plan of an epoch, padded batches."""
