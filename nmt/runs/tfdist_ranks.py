"""The ranks (processes) of a run by tfdist: `core.ranks` with it, and the settings that it knows.

The import of `tfdist` makes the ranks start from equal weights and average their gradients.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Set
from typing import Any, TypeVar

import numpy as np

import tfdist
from nmt.core.errors import InputError
from nmt.core.ranks import AgreedError, from_root

Value = TypeVar("Value")
_PRODUCTS = {"float32": "none", "bfloat16": "bf16", "float16": "fp16"}  # by the name that a user gives


def share_of_cores(usable: Set[int], all_cores: Set[int], local_rank: int, local_size: int) -> Set[int]:
    """The cores of one of a machine's ranks, so that none is sent to and fro, and none runs on another's.

    Those that it may use already, if somebody has chosen them (they are not all there are), or if all cannot be dealt
    evenly: there may be more ranks than cores, and to leave some cores to nobody is not for a program to decide.
    """
    if usable != all_cores or len(usable) % local_size:
        return usable
    each = len(usable) // local_size
    return set(sorted(usable)[local_rank * each : (local_rank + 1) * each])


class Processes:
    """The ranks that tfdist has found; implements `nmt.core.ranks.Ranks`, and more that only a run needs.

    Attributes:
        job: the name of a job that `tfdist-run` may start again; empty for others.
    """

    def __init__(self) -> None:
        self.rank: int = tfdist.rank()
        self.size: int = tfdist.size()
        self._settings = tfdist.Settings.from_environment()
        self.job = self._settings.job
        if self._settings.divergence != "off":
            tfdist.configure(divergence="off")  # the program looks at its loss, and does what that asks for

    def sum(self, value: np.ndarray) -> np.ndarray:
        """The sum over all ranks. Collective."""
        return tfdist.all_reduce(value, op="sum")

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value. Collective."""
        return tfdist.broadcast(value)

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks. Collective."""
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        ends = np.cumsum(tfdist.all_gather(np.array([mine.size])))
        return [pickle.loads(part.tobytes()) for part in np.split(tfdist.all_gather(mine), ends[:-1])]

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Marks work that the other ranks wait for."""
        return tfdist.alone(reason)

    def barrier(self) -> None:
        """Returns when all have called it. Collective."""
        tfdist.barrier()

    def end_block(self) -> None:
        """Averages what the ranks have trained since the last block's end. Collective."""
        tfdist.end_block()

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Tells all ranks, with the next step."""
        tfdist.ask_to_stop(wanted)

    def asked_to_stop(self) -> bool:
        """Whether any rank had told so by the last step."""
        return tfdist.asked_to_stop()

    def asked(self, name: str, flag: Any, said: str = "") -> Any:
        """A setting as a flag asks for it, or, if that is None, as the environment has it.

        Args:
            name: of the setting.
            flag: what is asked for.
            said: how the flag says it, if not by that name and value.

        Raises:
            InputError: the two contradict each other.
        """
        there, origins = getattr(self._settings, name), self._settings.origins
        if flag is None:
            return there
        if name in origins and str(flag) != str(there):
            said = said or f"{name}={flag}"
            raise InputError(
                f"--{said} contradicts {origins[name]}, where it is {there}: leave the variable out, and say it by the "
                "flag"
            )
        return flag

    def configure(self, **given: Any) -> None:
        """Have training graphs built so from now on; what is at its default stays as the environment has it.

        Raises:
            AgreedError: on every rank, if settings contradict each other.
        """
        fields = tfdist.Settings.fields()
        wanted = {name: value for name, value in given.items() if value not in (None, fields[name].default)}
        try:
            if wanted:
                tfdist.configure(**wanted)
        except tfdist.SettingsError as error:
            raise AgreedError(str(error), self.rank == 0) from None

    def multiply_in(self, precision: str) -> None:
        """Has graphs built from now on compute their products in a format, the value of --precision.

        Collective: every rank calls.

        Raises:
            AgreedError: on every rank, if a variable of tfdist on rank 0 says otherwise.
        """
        products = _PRODUCTS[precision]
        from_root(self, lambda: self.asked("mixed_precision", products, f"precision={precision}"))
        self.configure(mixed_precision=products)

    def take_cores(self) -> None:
        """Stays on this rank's share of the cores from here on: see `share_of_cores`. Before the first session."""
        usable, all_cores = os.sched_getaffinity(0), set(range(os.cpu_count() or 1))
        os.sched_setaffinity(0, share_of_cores(usable, all_cores, tfdist.local_rank(), tfdist.local_size()))

    def abort(self, message: str) -> None:
        """Ends all ranks with a message. Not collective."""
        tfdist.abort(message)

    def untouched(self) -> contextlib.AbstractContextManager[Any]:
        """In such a block graphs are built as they are, without broadcasts of initial values."""
        return tfdist.disable_broadcast()
