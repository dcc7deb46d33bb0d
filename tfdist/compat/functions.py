"""Functions: what is known of a ``tf.function`` while it is traced."""

from __future__ import annotations

import sys

from tensorflow.python.eager.polymorphic_function import polymorphic_function


def compiled() -> str | None:
    """The name of the function that is being traced with ``jit_compile=True``, if one is.

    A traced function does not know its own flag: its owner, whose method calls it, does
    (tensorflow/python/eager/polymorphic_function/polymorphic_function.py).
    """
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, polymorphic_function.Function) and owner._jit_compile:
            return str(owner.python_function.__name__)
        frame = frame.f_back  # type: ignore[assignment]
    return None
