"""Pipeline: what becomes of the gradients that an optimizer applies, stage after stage.

A stage has its part done and the stages behind it go on with what it has made of the update: other gradients, a
condition, a name. ``order`` is the one place that says which comes before which; what two stages mean together follows
from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Reducer
from tfdist.graph.markers import variable_key
from tfdist.training import gradient_rewrite
from tfdist.training.gradient_rewrite import Application
from tfdist.training.steps import Steps

Pairs = Sequence[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Update:
    """What an optimizer is about to apply, as the stages before have left it.

    Attributes:
      optimizer: of TensorFlow, Keras or tf_keras.
      pairs: gradients, or None, and variables.
      call: the optimizer's own: applies pairs under a name, and returns what stands for that.
      name: of the operation; None: the optimizer's.
      held: adds the gradients of several steps up; None: each step is applied.
      reducer: what becomes of gradients; None: the job's.
      block: of local steps, that this is a step of.
      due: whether it is applied in this step, a bool; None: it is.
    """

    optimizer: Any
    pairs: Pairs
    call: Callable[[Pairs, str | None], Any]
    name: str | None = None
    held: Application | None = None
    reducer: Reducer | None = None
    block: Any = None
    due: tf.Tensor | None = None

    def with_(self, **changed: Any) -> Update:
        """The same but for these attributes."""
        return dataclasses.replace(self, **changed)

    @property
    def trained(self) -> list[Any]:
        """The variables that have a gradient."""
        return [variable for gradient, variable in self.pairs if gradient is not None]


GoOn = Callable[[Update], Any]


class Stage:
    """One part of what becomes of an update. This one does nothing."""

    def update(self, update: Update, go_on: GoOn) -> Any:
        """Do its part.

        Args:
          update: as the stages before have left it.
          go_on: has the stages behind do theirs, with an update.

        Returns:
          What stands for the update, as ``go_on`` returns it.
        """
        return go_on(update)

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """An optimizer of Keras 3 has made its variables, for those that it trains."""


class Pipeline:
    """The stages of this process.

    Args:
      stages: in their order.

    Attributes:
      stages: with those that were added.
      added: those.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = list(stages)
        self.added: list[Stage] = []

    def add(self, stage: Stage, before_exchange: bool) -> None:
        """Have another one take part, next to the exchange."""
        exchange = next(number for number, one in enumerate(self.stages) if isinstance(one, Reduce))
        self.stages.insert(exchange if before_exchange else exchange + 1, stage)
        self.added.append(stage)

    def remove(self, stage: Stage) -> None:
        """Take one that was added out again."""
        self.added.remove(stage)
        self.stages.remove(stage)

    def run(self, update: Update) -> Any:
        """Have an update done; returns what stands for it."""
        return self._from(0, update)

    def _from(self, number: int, update: Update) -> Any:
        if number == len(self.stages):
            return update.call(update.pairs, update.name)
        return self.stages[number].update(update, lambda changed: self._from(number + 1, changed))

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """See ``Stage``."""
        for stage in self.stages:
            stage.built(optimizer, variables)


class Known(Stage):
    """What an optimizer trains is known from then on: its variables, in a graph; its own, outside."""

    def __init__(self, steps: Steps) -> None:
        self._job, self._variables = steps.job, steps.variables

    def update(self, update: Update, go_on: GoOn) -> Any:
        result = go_on(update)
        if not self._job.switches.rewrites:
            return result
        if function_state.in_session():
            state = make_state(tf.compat.v1.get_default_graph())
            state.trained.update(dict.fromkeys(map(variable_key, update.trained)))
            state.optimizers.append(update.optimizer)
        else:
            self._variables.applied_by(update.optimizer)
        return result


class Reduce(Stage):
    """Each rank's own gradients become their averages.

    Args:
      steps: of this process.
      built: called when averages have been built in a graph.
    """

    def __init__(self, steps: Steps, built: Callable[[], None]) -> None:
        self._job, self._eager, self._built = steps.job, steps.eager, built

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(update.with_(pairs=self._averaged(update)) if self._job.switches.rewrites else update)

    def _averaged(self, update: Update) -> Pairs:
        gradient_rewrite.check_replicas(tf.distribute.get_strategy())
        if tf.executing_eagerly():
            return self._eager.applied(update.optimizer, update.pairs)
        averages = gradient_rewrite.averaged(update.pairs, self._job, update.held, update.reducer)
        gradient_rewrite.warn_of_condition(self._job)
        self._built()
        return averages


class SetAlike(Stage):
    """What is set from here on is set alike on all ranks."""

    def __init__(self, steps: Steps) -> None:
        self._variables = steps.variables

    def update(self, update: Update, go_on: GoOn) -> Any:
        with self._variables.setting():
            return go_on(update)
