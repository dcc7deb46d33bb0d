"""Sequence-to-sequence models as TensorFlow graphs: one interface, the model families and their shared parts."""
