"""Which turn of a loop failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def subtest(*what: object) -> Iterator[None]:
    """What fails inside says in which turn: ``with subtest(dtype, op): …``."""
    try:
        yield
    except Exception as error:
        words = ", ".join(getattr(one, "__name__", None) or str(one) for one in what)
        raise AssertionError(f"in the subtest of {words}: {type(error).__name__}: {error}") from error
