"""A custom engine: adding one takes this module and one line, ``extend.add_engine``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import tfdist
from tests.multirank.cases_law import OPTIMIZERS, clipped_model
from tests.multirank.inside import job, settings
from tests.multirank.oracle import assert_law
from tfdist import extend
from tfdist.core.settings import Settings
from tfdist.engine.autotune import Engines


@dataclasses.dataclass(frozen=True)
class Everything:
    """An engine where each rank gathers all ranks' tensors and adds them."""

    name: ClassVar[str] = "everything"
    device: ClassVar[str] = "/device:CPU:0"
    taken: ClassVar[list[str]] = []

    def needs(self, tensors: int) -> None:
        return None

    def open(self, bucket: extend.Bucket, channel: Any) -> Any:
        self.taken.append(bucket.what)
        return _AllGather(bucket, channel)

    def settings(self) -> str:
        return "everything"

    def __str__(self) -> str:
        return "everything to everybody"


class _AllGather:
    lost = ()

    def __init__(self, bucket: extend.Bucket, channel: Any) -> None:
        self._bucket, self._channel = bucket, channel

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        pass

    def run(self, context: Any, sources: Any, whole: np.ndarray, targets: Any, divisor: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            every = self._channel.all_gather(source.view(np.uint8))
            target[:] = np.sum([every[rank].view(self._bucket.dtype) for rank in context.present], axis=0) / divisor


extend.add_engine("everything", lambda world, settings: [Everything()])


def case_a_new_engine_is_chosen_by_its_name_and_keeps_the_law() -> None:
    engines = Engines(job().world, lambda: Settings.from_environment({"TFDIST_ENGINE": "everything"}))
    choice = engines.choose()
    assert isinstance(choice.engine, Everything)
    Everything.taken.clear()
    with settings(choice):
        assert_law(functools.partial(clipped_model, OPTIMIZERS["momentum"]))
    assert bool(Everything.taken) == (tfdist.size() > 1)


def case_a_new_engine_is_measured_with_the_others() -> None:
    if tfdist.size() == 1:
        return
    measured = Engines(job().world, lambda: Settings(engine="auto")).measure()
    times = {engine.name: seconds for engine, seconds in measured.tried}
    assert times["everything"] > 0 and "shared" in times, times
