"""Pipeline: the stages between an optimizer's call and its update.

A stage changes the update (its gradients, a condition, its name) and passes it to the next stage. The order of the
stages is defined in ``order`` only. It determines how two stages work together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat.variables import is_overwritten
from tfdist.core.log import announce
from tfdist.gradients import rewrite
from tfdist.gradients.rows import way_of
from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import numberless, variable_key, variable_name
from tfdist.graph.op_builder import few
from tfdist.graph.step_sums import Accumulation
from tfdist.graph.tensor_collectives import TensorCollectives
from tfdist.training.steps import Steps
from tfdist.updates.error_feedback import error_feedback_of

_OVERWRITTEN = (
    "float8: what overwrites a variable is the largest value of the ranks. For gradients of outputs it is %d times "
    "that of one process, because each rank's loss is the mean of a smaller batch"
)
_ROWS = (
    "%s: %s of Keras squares or clips each row of a lookup by itself, and the ranks send the sums of equal rows. So "
    "the training differs from that of one process (5 to 80 %% were seen). TFDIST_SPARSE=unmerged makes both equal. "
    "For one table set tfdist.configure(sparse_ways={%r: 'unmerged'})"
)
Pairs = Sequence[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Update:
    """Update that an optimizer is about to apply, as the earlier stages have changed it.

    Attributes:
      optimizer: optimizer of TensorFlow, Keras or tf_keras.
      pairs: gradients (or None) and variables.
      call: the optimizer's own function (pairs, name) -> result, which applies the pairs.
      name: name of the operation; None for the optimizer's default.
      accumulation: accumulation of the gradients of several steps; None if each step is applied.
      reducer: reducer of the gradients; None for the job's reducer.
      in_block: True for a step of a block of local steps.
      due: bool tensor: whether the update is applied in this step; None if it is in each step.
    """

    optimizer: Any
    pairs: Pairs
    call: Callable[[Pairs, str | None], Any]
    name: str | None = None
    accumulation: Accumulation | None = None
    reducer: Reducer | None = None
    in_block: bool = False
    due: tf.Tensor | None = None

    def with_(self, **changed: Any) -> Update:
        """Return a copy with other values of these attributes."""
        return dataclasses.replace(self, **changed)

    @property
    def trained(self) -> list[Any]:
        """Variables that have a gradient."""
        return [variable for gradient, variable in self.pairs if gradient is not None]

    @property
    def gradients(self) -> list[Any]:
        """Gradients that are not None."""
        return [gradient for gradient, _ in self.pairs if gradient is not None]


GoOn = Callable[[Update], Any]


class Stage:
    """Stage of an update. This base class changes nothing."""

    def update(self, update: Update, go_on: GoOn) -> Any:
        """Change an update, and pass it to the next stage.

        Args:
          update: update as the earlier stages have changed it.
          go_on: function that runs the later stages with an update.

        Returns:
          The result of the update, as ``go_on`` returns it.
        """
        return go_on(update)

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Handle a new optimizer of Keras 3 that has made its variables.

        Args:
          optimizer: the optimizer.
          variables: variables that it trains.
        """


class JobStage(Stage):
    """Stage that reads the settings.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job


class Pipeline:
    """Stages of this process.

    Args:
      stages: built-in stages, in their order.

    Attributes:
      stages: all stages, with the added ones, in their order.
      added: stages that were added.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = list(stages)
        self.added: list[Stage] = []

    def add(self, stage: Stage, before_exchange: bool) -> None:
        """Add a stage immediately before or after the exchange."""
        exchange = next(number for number, one in enumerate(self.stages) if isinstance(one, Reduce))
        self.stages.insert(exchange if before_exchange else exchange + 1, stage)
        self.added.append(stage)

    def remove(self, stage: Stage) -> None:
        """Remove a stage that was added."""
        self.added.remove(stage)
        self.stages.remove(stage)

    def run(self, update: Update) -> Any:
        """Run an update through all stages, and return its result."""
        return self._from(0, update)

    def _from(self, number: int, update: Update) -> Any:
        if number == len(self.stages):
            return update.call(update.pairs, update.name)
        return self.stages[number].update(update, lambda changed: self._from(number + 1, changed))

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """See ``Stage``."""
        for stage in self.stages:
            stage.built(optimizer, variables)


class Reduce(Stage):
    """Stage that replaces each rank's own gradients with averages. The later stages set the same values on all ranks.

    What overwrites a variable is no gradient. It is the largest value of a batch, for Keras's float8: one process would
    take the maximum.

    Args:
      steps: objects around the training steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._job, self._eager, self._variables = steps.job, steps.eager, steps.variables
        self._feedback = error_feedback_of(steps)
        self._told: set[str] = set()
        self._together = TensorCollectives(steps.job, steps.job.world)

    def update(self, update: Update, go_on: GoOn) -> Any:
        rewrites = self._job.switches.rewrites
        averaged = update.with_(pairs=self._averaged(update)) if rewrites else update
        with self._variables.setting():
            result = go_on(averaged)
        if rewrites:
            self._note(update)
        return result

    def _note(self, update: Update) -> None:
        """Note the trained variables and the optimizer in a session's graph, or the optimizer's variables outside."""
        if function_state.in_session():
            state = make_state(tf.compat.v1.get_default_graph())
            state.trained.update(dict.fromkeys(map(variable_key, update.trained)))
            state.optimizers.append(update.optimizer)
        else:
            self._variables.applied_by(update.optimizer)

    def _averaged(self, update: Update) -> Pairs:
        rewrite.check_replicas(tf.distribute.get_strategy())
        found = list(update.pairs)
        overwriting = [n for n, (g, v) in enumerate(found) if g is not None and is_overwritten(v)]
        others = [n for n in range(len(found)) if n not in overwriting]
        pairs = [found[n] for n in others]
        if tf.executing_eagerly():
            averages = self._eager.applied(update.optimizer, pairs)
        else:
            averages = rewrite.averaged(pairs, self._job, update.accumulation, update.reducer)
            rewrite.warn_of_condition(self._job)
            self._feedback.make_variables()
        if not update.in_block:
            self._say_rows(update)
        for n, average in zip(others, averages, strict=True):
            found[n] = average
        if overwriting and not update.in_block:
            own = [tf.convert_to_tensor(found[n][0]) for n in overwriting]
            self._say("float8", _OVERWRITTEN % self._job.world.size)
            for n, largest in zip(overwriting, self._together.all_reduce_together(own, "max"), strict=True):
                found[n] = largest, found[n][1]
        return found

    def _say_rows(self, update: Update) -> None:
        """Log which tables an optimizer trains in another way than in one process."""
        tables = [v for g, v in update.pairs if isinstance(g, tf.IndexedSlices)]
        tables = [v for v in tables if way_of(numberless(variable_name(v)), self._job) != "unmerged"]
        kind = optimizers.by_single_rows(update.optimizer, tables) if tables else ""
        if kind:
            names = list(map(variable_name, tables))
            self._say(f"{kind} {names}", _ROWS % (few(names), kind, numberless(names[0])))

    def _say(self, what: str, told: str) -> None:
        if what not in self._told and self._job.world.size > 1:
            self._told.add(what)
            announce(told)
