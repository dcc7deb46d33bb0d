"""Neural machine translation with TensorFlow, data-parallel over any number of processes."""

from nmt.core import interruption, missing_tensorflow

interruption.ends_at_once()
missing_tensorflow.is_told()
