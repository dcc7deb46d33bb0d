"""Which channels are reused."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from tfdist.mpi._pool import Pool
from tfdist.transport.interfaces import Channel
from tfdist.transport.one_process import OneProcess


class TwoRanks(OneProcess):
    """Two ranks; the other rank has released the channels in ``others``."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[int] = []

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0, notes: Any = ()) -> list[int]:
        return [flags, int(bool(self.others))]

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        return [value, self.others]


def pool() -> tuple[TwoRanks, Pool[Channel, bool]]:
    ranks = TwoRanks()
    return ranks, Pool(ranks, lambda shared: OneProcess(), "channel")


class TestPool:
    def test_what_another_rank_still_needs_is_not_used_again(self) -> None:
        ranks, channels = pool()
        made: list[Channel] = [channels.take("", False) for _ in range(3)]
        channels.give_back(made[1])
        assert channels.take("", False) not in made
        ranks.others = [0]
        assert channels.take("", False) not in made and len(channels.things) == 5
        ranks.others = [0, 1, 2]
        assert channels.take("", False) is made[1]
        assert channels.take("", False) not in made, "it is in use again"

    def test_what_shares_no_memory_is_not_used_again(self) -> None:
        ranks, channels = pool()
        first = channels.take("", True)
        channels.give_back(first)
        ranks.others = [0]
        assert channels.take("", False) is not first
        assert channels.take("", True) is first

    def test_garbage_is_collected_before_there_are_many(self) -> None:
        class ReplicaVariable:
            def __init__(self, channel: Channel) -> None:
                weakref.finalize(self, channels.give_back, channel)
                self.itself = self

        ranks, channels = pool()
        ranks.others = list(range(1000))
        gc.freeze()  # objects of other tests: each collection would go through all of them
        for _ in range(200):
            ReplicaVariable(channels.take("", False))
        gc.unfreeze()
        assert len(channels.things) <= 64
