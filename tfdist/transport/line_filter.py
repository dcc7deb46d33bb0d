"""Line filter: which lines of operations a rank has been on, in a fixed number of bytes.

A Bloom filter (Bloom 1970, "Space/Time Trade-offs in Hash Coding with Allowable Errors"): a line sets a few bits. A
line of which one bit is not set was never added. Bits are never cleared, so this stays true while others write.
"""

from __future__ import annotations

FILTER_BYTES = 2048
_INDEX_BITS = 14  # of a bit among 8 * FILTER_BYTES
_BITS_OF_A_LINE = 4  # of its 62 bits, which are a digest already: see ``calls.line_number``


def add(bits: memoryview, line: int) -> None:
    """Add a line.

    Args:
      bits: uint8 [FILTER_BYTES], zero at the start.
      line: line of operations, see ``calls.line_number``.
    """
    for index in _indices(line):
        bits[index >> 3] |= 1 << (index & 7)


def may_hold(bits: bytes, line: int) -> bool:
    """Return False if a line was certainly not added.

    Args:
      bits: FILTER_BYTES bytes; empty: no line was added.
      line: line of operations. With 1,000 lines added, a wrong True has a probability of 0.002; with 5,000 of 0.25.
    """
    return bool(bits) and all(bits[index >> 3] >> (index & 7) & 1 for index in _indices(line))


def _indices(line: int) -> list[int]:
    return [line >> _INDEX_BITS * place & (1 << _INDEX_BITS) - 1 for place in range(_BITS_OF_A_LINE)]
