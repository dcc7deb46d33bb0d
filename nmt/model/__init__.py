"""The sequence-to-sequence model as a TensorFlow graph."""
