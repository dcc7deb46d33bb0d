"""LARC by a setting (``TFDIST_LARC``): the last stage of an update, for scripts that do not call ``larc``."""

from __future__ import annotations

from typing import Any, cast

from tfdist.compat.optimizers import innermost, of_keras_3, rate, tree
from tfdist.core import exclusions
from tfdist.core.settings import SettingsError
from tfdist.graph.job import Job
from tfdist.updates.larc import Larc, LarcOptimizer, Mode
from tfdist.updates.pipeline import GoOn, Stage, Update


class LarcOfSettings(Stage):
    """Stage that scales gradients by LARC if a setting requests it.

    Args:
      job: the settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def update(self, update: Update, go_on: GoOn) -> Any:
        larc = self._larc()
        if larc is None:
            return go_on(update)
        name = f"larc={larc.mode}"
        around = tree(update.optimizer)
        if any(isinstance(one, LarcOptimizer) or type(one).__name__ == "LarcKerasOptimizer" for one in around):
            raise SettingsError(exclusions.LARC_TWICE.told(name, type(around[0]).__name__))
        if of_keras_3(update.optimizer):
            from tfdist.updates.larc_keras import scale_updates  # which imports Keras

            for one in innermost(update.optimizer):
                scale_updates(one, self._larc)
            return go_on(update)
        learning_rate = rate(update.optimizer)
        if larc.mode == "clip" and learning_rate is None:
            raise SettingsError(
                f"{name}, but the learning rate of {type(around[-1]).__name__} cannot be read: use tfdist.larc with "
                "the same learning_rate, or larc=scale, which needs none"
            )
        scaled = larc.gradients([g for g, _ in update.pairs], [v for _, v in update.pairs], learning_rate)
        return go_on(update.with_(pairs=list(zip(scaled, [v for _, v in update.pairs], strict=True))))

    def _larc(self) -> Larc | None:
        settings, rewrites = self._job.switches.settings, self._job.switches.rewrites
        return Larc(settings.larc_eta, cast("Mode", settings.larc)) if rewrites and settings.larc != "off" else None
