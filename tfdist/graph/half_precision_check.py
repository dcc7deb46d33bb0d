"""Rounding: reports ranks whose devices do not compute products in the half precision that was asked for."""

from __future__ import annotations

from tfdist.core.log import announce
from tfdist.transport.interfaces import Group


class HalfPrecisionCheck:
    """State of this process. Rounded products are not faster than those of float32, and other ranks wait for them."""

    def __init__(self) -> None:
        self._dtype = ""
        self._compared = False

    def found(self, dtype: str) -> None:
        """Note that this rank's device computes no products of a dtype; rank 0 logs it, as there may be no exchange."""
        if not self._dtype:
            self._dtype = dtype
            announce(
                f"this processor, or TensorFlow without oneDNN, computes no products of {dtype}: they are float32's, "
                f"of operands rounded to {dtype}. Training behaves as with {dtype}, but is not faster "
                "(TFDIST_MIXED_PRECISION)"
            )

    def compare(self, group: Group) -> None:
        """Let rank 0 log, once, the ranks without such products, if ranks differ. Collective: the group's ranks."""
        flags = group.control.arrive("the comparison of processors", int(bool(self._dtype)))
        lacking = [rank for rank, flag in zip(group.ranks, flags, strict=True) if flag]
        if self._compared or not 0 < len(lacking) < len(flags):
            return
        self._compared = True
        numbers = ", ".join(map(str, lacking[:8])) + (", ..." if len(lacking) > 8 else "")
        announce(
            f"{len(lacking)} of {len(flags)} ranks ({numbers}) run on processors, or with a TensorFlow without oneDNN, "
            "that compute no products in the requested half precision. The others wait for them in every step "
            "(TFDIST_MIXED_PRECISION)"
        )
