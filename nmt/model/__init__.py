"""The sequence-to-sequence model as a TensorFlow graph: one interface, the families of models, shared parts."""
