"""Process sets: subsets of the ranks, with their own operations and optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tfdist.horovod._state import state
from tfdist.horovod.named.requests import Request


def _ranks_of(given: Any) -> list[int]:
    if isinstance(given, Iterable):
        ranks = list(given)
        if all(isinstance(rank, int) for rank in ranks):
            return sorted(ranks)
    elif hasattr(given, "group") and hasattr(given, "Get_rank"):
        return sorted(int(rank) for rank in given.allgather(state.job.world.rank))
    raise ValueError(f"{given!r}: a process set is made of ranks, or of a communicator of mpi4py")


class ProcessSet:
    """A subset of the ranks. ``hvd.init(process_sets=[...])`` or ``hvd.add_process_set`` adds it to the job.

    Args:
      ranks_or_comm: ranks, in any order; or an mpi4py communicator of these ranks.

    Attributes:
      process_set_id: its number; None while it is not in use.
      ranks: its ranks in the job, ascending.
      mpi_comm: always None, since only the ranks of a communicator are used.
    """

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Any) -> None:
        self.ranks: list[int] | None = _ranks_of(ranks_or_comm)

    def size(self) -> int | None:
        """Return the number of ranks in the set; None while it is not in use."""
        return None if self.process_set_id is None else len(state.members(self.process_set_id).ranks)

    def rank(self) -> int | None:
        """Return the index of this process in the set; -1 if it is not a member; None while the set is not in use."""
        if self.process_set_id is None:
            return None
        ranks = state.members(self.process_set_id).ranks
        own = state.job.world.rank
        return ranks.index(own) if own in ranks else -1

    def included(self) -> bool | None:
        """Return whether this process is in the set; None if the set has no ranks yet."""
        rank = state.world.rank
        return None if self.ranks is None else rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a process set to the job.

    Collective: all ranks, with the same ranks in the set.

    Raises:
      ValueError: a set of these ranks exists, or these are no ranks of the job.
      tf.errors.FailedPreconditionError: other ranks add another set.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = made.ranks or []
    size = state.world.size
    if not ranks or len(set(ranks)) < len(ranks) or ranks[0] < 0 or ranks[-1] >= size:
        raise ValueError(f"{made}: a process set has one or more of the ranks 0 to {size - 1}, each once")
    if any(members.ranks == ranks for members in state.sets.values()):
        raise ValueError(f"a process set of these ranks exists already: {made}")
    _agree(f"ranks {', '.join(map(str, ranks))} are added")
    made.process_set_id = state.add(ranks).number
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set from the job. The set of all ranks cannot be removed.

    Collective: all ranks.

    Returns:
      True if it was removed; False for the set of all ranks, or a set that is not in use.
    """
    number = process_set.process_set_id
    if not number or number not in state.sets:
        return False
    _agree(f"{number} is removed")
    process_set.process_set_id = None
    state.remove(number)
    return True


def number_of(process_set: Any) -> int | None:
    """Return the number of a process set, which may be given as a number."""
    return process_set if isinstance(process_set, int) else getattr(process_set, "process_set_id", None)


def _agree(what: str) -> None:
    negotiation = state.own(0)
    negotiation.begin(Request("process set", negotiation.next_name("process set"), op=what)).result()


__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
