"""ConvS2S: an encoder-decoder of convolutions."""
