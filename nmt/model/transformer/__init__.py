"""The Transformer: an encoder-decoder of attention alone."""
