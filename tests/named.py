"""subtest: names the turn of a loop that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def subtest(*what: object) -> Iterator[None]:
    """Add the turn to the message of an error inside: ``with subtest(dtype, op): …``."""
    try:
        yield
    except Exception as error:
        words = ", ".join(getattr(one, "__name__", None) or str(one) for one in what)
        raise AssertionError(f"in the subtest of {words}: {type(error).__name__}: {error}") from error
