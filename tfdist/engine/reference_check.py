"""Reference check: compares the result of an exchange with the same values combined in float64 by MPI's messages.

``TFDIST_CHECK=k`` asks for it at every k-th exchange, as the attribute ``check`` of IBM's DDL did. It finds memory,
networks and engines that return wrong numbers. It is slow, and uses no code of the engines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tfdist.core.reduce_ops import Op
from tfdist.transport.interfaces import Channel, DisagreementError

# A block of values and of their magnitudes, in float64. Between machines larger arrays would not travel by MPI alone.
_BLOCK = 4_000
_INTEGER_EPSILON = 2.0**-52
_DIFFERS = (
    "{place}: rank {rank} has {found:.9g} at element {element} of {tensor}, but MPI in float64 has {expected:.9g}. "
    "{count} of its elements differ{others}. {by} gave this result: try TFDIST_ENGINE=mpi, and test the memory and the "
    "network of the named hosts"
)


class Context(Protocol):
    """The part of ``exchange.ExchangeContext`` that the check needs."""

    @property
    def channel(self) -> Channel: ...  # noqa: D102

    @property
    def contributes(self) -> bool: ...  # noqa: D102

    @property
    def present(self) -> list[int]: ...  # noqa: D102

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks of the channel, by their numbers in the job."""

    def place(self, what: str) -> str: ...  # noqa: D102


@dataclasses.dataclass
class _Difference:
    tensor: str
    element: int
    found: float
    expected: float
    count: int


def compare_sums(
    context: Context,
    op: Op,
    sources: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
    divisor: int,
    names: Sequence[str],
    what: str,
    by: str,
) -> None:
    """Compare the results of an all-reduce. Collective: the channel's ranks.

    Args:
      context: what the exchange knows of this step.
      op: operation that has combined the tensors.
      sources: this rank's tensors, flat.
      results: this rank's results, flat, of the same sizes and dtypes.
      divisor: number by which sums were divided.
      names: names of the tensors.
      what: description of the exchange.
      by: description of the engine, at the beginning of a sentence.

    Raises:
      DisagreementError: results of some rank differ by more than rounding. All ranks raise the same error.
    """
    worst: _Difference | None = None
    for name, source, result in zip(names, sources, results, strict=True):
        for start in range(0, max(1, source.size), _BLOCK):
            part = slice(start, start + _BLOCK)
            own = _numbers(source[part])
            if not context.contributes:
                own = np.full_like(own, {"product": 1.0, "min": np.inf, "max": -np.inf}.get(op, 0.0))
            both = np.concatenate([own, np.abs(own) if op in ("sum", "mean") else own[:0]])
            context.channel.all_reduce(both, "sum" if op == "mean" else op)
            expected, magnitudes = both[: own.size] / divisor, both[own.size :] / divisor
            if not magnitudes.size:
                magnitudes = np.abs(expected)
            found = _numbers(result[part])
            wrong = _wrong(found, expected, magnitudes, result.dtype, len(context.present))
            worst = _with(worst, name, start, wrong, found, expected)
    _agree(context, worst, what, by)


def compare_rows(
    context: Context,
    sources: Sequence[tuple[np.ndarray, np.ndarray]],
    results: Sequence[tuple[np.ndarray, np.ndarray]],
    merged: Sequence[bool],
    names: Sequence[str],
    what: str,
) -> None:
    """Compare averages of sparse rows. Collective: the channel's ranks.

    Args:
      context: what the exchange knows of this step.
      sources: (indices [rows], values [rows, width]) of this rank, for each table.
      results: the averages, in the same form.
      merged: for each table whether equal indices were added.
      names: names of the tables.
      what: description of the exchange.

    Raises:
      DisagreementError: as in ``compare_sums``.
    """
    divisor = max(1, len(context.present))
    worst: _Difference | None = None
    for name, (indices, values), (rows, averages), together in zip(names, sources, results, merged, strict=True):
        width, own = values.shape[1], values.astype(np.float64)
        every_index = np.concatenate([p.view(indices.dtype) for p in context.channel.all_gather(_bytes(indices))])
        every = [p.view(np.float64).reshape(-1, width) for p in context.channel.all_gather(_bytes(own))]
        expected = np.concatenate(every) / divisor
        union, magnitudes = every_index, np.abs(expected)
        if together:
            union, places = np.unique(every_index, return_inverse=True)
            sums, sizes = np.zeros((2, len(union), width))
            np.add.at(sums, places, expected)
            np.add.at(sizes, places, magnitudes)
            expected, magnitudes = sums, sizes
        if np.array_equal(union, rows):
            found = averages.astype(np.float64).reshape(-1)
            expected, magnitudes = expected.reshape(-1), magnitudes.reshape(-1)
            wrong = _wrong(found, expected, magnitudes, values.dtype, len(context.present))
            worst = _with(worst, name, 0, wrong, found, expected)
        elif worst is None:
            worst = _Difference(
                f"the list of rows of {name}", 0, len(rows), len(union), abs(len(rows) - len(union)) or 1
            )
    _agree(context, worst, what, "The exchange of rows")


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return a flat array as float64; complex numbers as two."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128).view(np.float64)
    return array.astype(np.float64)


def _wrong(found: np.ndarray, expected: np.ndarray, magnitudes: np.ndarray, dtype: np.dtype, ranks: int) -> np.ndarray:
    """Return which elements differ by more than the rounding of sums in ``dtype``."""
    epsilon, largest, smallest = _limits(dtype)
    tolerance = (ranks + 2) * (epsilon * magnitudes + smallest)
    with np.errstate(invalid="ignore"):
        beyond = ~(np.abs(found - expected) <= tolerance)
    # Infinities, NaN and overflows are values of their own: engines may meet them in another order.
    return beyond & np.isfinite(magnitudes) & (magnitudes * ranks < 0.99 * largest)


def _limits(dtype: np.dtype) -> tuple[float, float, float]:
    """Return a dtype's rounding, its largest number, and the numbers that arithmetic may take for zero."""
    if dtype.kind == "b":
        return _INTEGER_EPSILON, 1.0, 0.0
    if dtype.kind in "iu":
        return _INTEGER_EPSILON, float(np.iinfo(dtype).max), 0.0
    # NumPy knows no bfloat16 and no float8.
    import ml_dtypes  # comes with TensorFlow, which may be missing: the import of tfdist says so

    found: Any = ml_dtypes.finfo(dtype)
    # TensorFlow's threads take denormal numbers for zero. Narrow dtypes are added as float32.
    normal = np.finfo(np.float64 if dtype in (np.float64, np.complex128) else np.float32).tiny
    return float(found.eps), float(found.max), max(float(found.smallest_subnormal), float(normal))


def _with(
    worst: _Difference | None,
    name: str,
    start: int,
    wrong: np.ndarray,
    found: np.ndarray,
    expected: np.ndarray,
) -> _Difference | None:
    """Return the first difference so far, with the number of all."""
    if not wrong.any():
        return worst
    first, count = int(np.argmax(wrong)), int(np.count_nonzero(wrong))
    if worst is None:
        return _Difference(name, start + first, float(found[first]), float(expected[first]), count)
    worst.count += count
    return worst


def _agree(context: Context, worst: _Difference | None, what: str, by: str) -> None:
    own = b"" if worst is None else json.dumps(dataclasses.asdict(worst)).encode()
    told = [part.tobytes() for part in context.channel.all_gather(np.frombuffer(own, np.uint8))]
    wrong = [position for position, text in enumerate(told) if text]
    if not wrong:
        return
    first: dict[str, Any] = json.loads(told[wrong[0]])
    ranks = [context.ranks[position] for position in wrong]
    others = f"; so do elements of the ranks {', '.join(map(str, ranks[1:]))}" if ranks[1:] else ""
    others += "" if len(ranks) == len(told) else "; the other ranks have what MPI has"
    raise DisagreementError(_DIFFERS.format(place=context.place(what), rank=ranks[0], others=others, by=by, **first))
