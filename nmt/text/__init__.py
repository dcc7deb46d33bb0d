"""Text in and text out: tokens, vocabularies, corpora, the plan of an epoch, padded batches."""
