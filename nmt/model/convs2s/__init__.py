"""ConvS2S: an encoder-decoder model made of convolutions."""
