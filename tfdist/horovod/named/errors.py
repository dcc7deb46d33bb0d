"""Errors: the negotiation's exceptions as the exceptions that Horovod documents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist.horovod.named.pending import DuplicateName, RunFailed
from tfdist.horovod.named.requests import BadArgument, Mismatch


@contextlib.contextmanager
def raise_tensorflow_errors() -> Iterator[None]:
    """Raise TensorFlow's exceptions instead of the negotiation's.

    Raises:
      tf.errors.FailedPreconditionError: the ranks' requests differ, or another operation of the run has failed.
      tf.errors.InvalidArgumentError: a rank's arguments are wrong, or an operation of this name is under way.
    """
    try:
        yield
    except (Mismatch, RunFailed) as error:
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from None
    except (BadArgument, DuplicateName) as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from None
