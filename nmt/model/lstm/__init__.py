"""Recurrent model family: LSTM, GRU and NAS stacks with attention, as in the TensorFlow NMT tutorial."""
