"""Neural machine translation with TensorFlow, data-parallel over any number of processes."""

from nmt.core import interruption

interruption.ends_at_once()
