"""The run that a failure of a collective has ended raises this failure unchanged; no other run raises it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.graph.failures import Failures
from tfdist.transport.errors import PeerError


def raised_by(error: BaseException) -> BaseException:
    """Return the error that TensorFlow makes of an error in a function."""

    def fail() -> None:
        raise error

    with pytest.raises(tf.errors.OpError) as wrapped:
        tf.function(lambda: tf.numpy_function(fail, [], tf.float32), autograph=False)()
    return wrapped.value


def test_the_failure_behind_an_error_is_found_once() -> None:
    failures = Failures()
    first, second = PeerError("rank 0 has waited\nlong for \u00fc"), ValueError("bad")
    failures.note(second)
    failures.note(first)
    error = raised_by(first)
    assert failures.behind(error) is first
    assert failures.behind(error) is None


def test_a_failure_that_was_not_raised_is_not_behind_another_error() -> None:
    failures = Failures()
    failures.note(PeerError("rank 0 has waited"))
    assert failures.behind(raised_by(ValueError("matrices do not fit"))) is None
    assert failures.behind(raised_by(KeyboardInterrupt())) is None
