"""Neural machine translation with TensorFlow, data parallel over any number of processes."""
