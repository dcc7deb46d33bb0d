"""The ranks (processes) of a run: implements `nmt.core.ranks.Ranks` with tfdist, and sets the options of tfdist.

Importing `tfdist` makes the ranks start from equal weights and average their gradients.
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
from nmt.core.ranks import CollectiveError, call_on_root

Value = TypeVar("Value")
_PRODUCTS = {"float32": "none", "bfloat16": "bf16", "float16": "fp16"}  # --precision -> mixed_precision of tfdist


def share_of_cores(usable: Set[int], all_cores: Set[int], local_rank: int, local_size: int) -> Set[int]:
    """Return the cores for a rank, so that its threads do not migrate and do not run on other ranks' cores.

    The result is `usable` if the user or launcher has restricted the cores, that is, if `usable` is not all cores. It
    is `usable`, too, if the cores cannot be divided evenly among the host's ranks. There may be more ranks than cores,
    and the program must not decide to leave cores idle.
    """
    if usable != all_cores or len(usable) % local_size:
        return usable
    each = len(usable) // local_size
    return set(sorted(usable)[local_rank * each : (local_rank + 1) * each])


class Processes:
    """The ranks of tfdist; implements `nmt.core.ranks.Ranks`, and more methods that only a run needs.

    Attributes:
        job: name of the job, if `tfdist-run` may restart it; else empty.
    """

    def __init__(self) -> None:
        self.rank: int = tfdist.rank()
        self.size: int = tfdist.size()
        self._settings = tfdist.Settings.from_environment()
        self.job = self._settings.job
        if self._settings.divergence != "off":
            tfdist.configure(divergence="off")  # the program has its own divergence guard

    def sum(self, value: np.ndarray) -> np.ndarray:
        """Return the sum over all ranks. Collective."""
        return tfdist.all_reduce(value, op="sum")

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value. Collective."""
        return tfdist.broadcast(value)

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks. Collective."""
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        ends = np.cumsum(tfdist.all_gather(np.array([mine.size])))
        return [pickle.loads(part.tobytes()) for part in np.split(tfdist.all_gather(mine), ends[:-1])]

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Mark a block of work, during which the other ranks wait."""
        return tfdist.alone(reason)

    def barrier(self) -> None:
        """Wait until all ranks have called it. Collective."""
        tfdist.barrier()

    def end_block(self) -> None:
        """End a block of local SGD: synchronise the ranks' weights. Collective."""
        tfdist.end_block()

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Request that training ends, or withdraw the request; it reaches all ranks with the next step."""
        tfdist.ask_to_stop(wanted)

    def asked_to_stop(self) -> bool:
        """Return whether any rank had requested a stop by the last step."""
        return tfdist.asked_to_stop()

    def asked(self, name: str, flag: Any, said: str = "") -> Any:
        """Return the value of a setting: the flag's value, or if it is None, the environment's value.

        Args:
            name: name of the setting.
            flag: value of the flag; None if it is not given.
            said: text of the flag for messages, if it is not `<name>=<flag>`.

        Raises:
            InputError: flag and environment contradict each other.
        """
        there, origins = getattr(self._settings, name), self._settings.origins
        if flag is None:
            return there
        if name in origins and str(flag) != str(there):
            said = said or f"{name}={flag}"
            raise InputError(
                f"--{said} contradicts {origins[name]}, where it is {there}: unset the variable, and use only the flag"
            )
        return flag

    def configure(self, **given: Any) -> None:
        """Set tfdist's settings for graphs that are built from now on; others keep the environment's values.

        Raises:
            CollectiveError: on every rank, if settings contradict each other.
        """
        try:
            if given:
                tfdist.configure(**given)
        except tfdist.SettingsError as error:
            raise CollectiveError(str(error).replace("tfdist.configure: ", "--"), self.rank == 0) from None

    def multiply_in(self, precision: str) -> None:
        """Set the number format of matrix products, a value of --precision, for graphs that are built from now on.

        Collective: every rank calls.

        Raises:
            CollectiveError: on every rank, if an environment variable of tfdist on rank 0 contradicts it.
        """
        products = _PRODUCTS[precision]
        call_on_root(self, lambda: self.asked("mixed_precision", products, f"precision={precision}"))
        if products != tfdist.Settings().mixed_precision:
            self.configure(mixed_precision=products)

    def take_cores(self) -> None:
        """Pin this process to its cores (see `share_of_cores`), if the system can. Call it before the first session."""
        if not hasattr(os, "sched_setaffinity"):
            return
        usable, all_cores = os.sched_getaffinity(0), set(range(os.cpu_count() or 1))
        os.sched_setaffinity(0, share_of_cores(usable, all_cores, tfdist.local_rank(), tfdist.local_size()))

    def abort(self, message: str) -> None:
        """End all ranks with a message. Not collective."""
        tfdist.abort(message)

    def untouched(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which graphs get no broadcasts of initial values."""
        return tfdist.disable_broadcast()
