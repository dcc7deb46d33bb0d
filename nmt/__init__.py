"""Neural machine translation with TensorFlow, data-parallel over any number of processes."""

from nmt.core import start

start.begin()
