"""Sessions of TensorFlow 1 (tensorflow/python/client/session.py)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session


def is_open(session: Any) -> bool:
    """Whether a session has not been closed."""
    return not session._closed


def fetched_names(graph: tf.Graph, fetches: Any) -> tuple[str, ...]:
    """The names of the tensors and operations in any structure that ``Session.run`` takes."""
    with graph.as_default():  # strings and variables are looked up there
        mapper = tf_session._FetchMapper.for_fetch(fetches)
    return tuple(f if isinstance(f, str) else f.name for f in mapper.unique_fetches())
