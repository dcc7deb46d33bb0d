"""Loss scaling: losses are multiplied before differentiation, and gradients divided before the script gets them.

The check for overflows uses the averages, which are the same on all ranks. So either all ranks leave an update out, or
none does. ``loss_scale`` computes the next scale. Its state is a variable in a session's graph, or one variable for all
functions and eager steps. Each optimizer's checkpoint contains this variable.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import control_flow, control_flow_around
from tfdist.compat.optimizers import scales_the_loss, track
from tfdist.compat.variables import is_overwritten
from tfdist.core import exclusions
from tfdist.core.log import announce, rarely
from tfdist.core.settings import SettingsError
from tfdist.gradients import marks
from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.markers import times
from tfdist.training.steps import Steps
from tfdist.updates import loss_scale
from tfdist.updates.error_feedback import graph_variable
from tfdist.updates.loss_scale import LossScale, LossScaleState
from tfdist.updates.pipeline import GoOn, Stage, Update

_NAME = "loss_scale_state"
_ATTRIBUTE = "_tfdist_loss_scale"  # attribute of a session's graph: the variable with the state
_HOPELESS = 100  # number of overflows in succession after which training ends


class LossScaling(Stage):
    """Stage that leaves updates with overflows out, and adapts the loss scale of this process.

    Args:
      steps: objects around the training steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._job = steps.job
        self._state: Any = None  # variable with the state outside sessions
        self._tracking: weakref.WeakSet[Any] = weakref.WeakSet()

    def scale(self, targets: Sequence[Any]) -> tf.Tensor | None:
        """Return the factor for losses that are about to be differentiated.

        Args:
          targets: the losses.

        Returns:
          A float32 scalar; None if the losses are not scaled.
        """
        how = self._how()
        if how is None or not targets or not all(_is_number(target) for target in targets):
            return None
        with tf.name_scope("tfdist/loss_scale"):
            if not how.changes:
                return tf.constant(how.first, tf.float32)
            return tf.cast(self._variable(how).read_value()[0], tf.float32)

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(update.with_(due=self._due(update)))

    def _due(self, update: Update) -> tf.Tensor | None:
        """Return whether an update is applied, and compute the next scale; None: each update is applied.

        Raises:
          SettingsError: the optimizer itself scales the loss.
        """
        due = None if update.accumulation is None else update.accumulation.all_due()
        how = self._how()
        if how is None or not update.trained:
            return due
        own = scales_the_loss(update.optimizer)
        if own:
            scale = self._job.switches.settings.loss_scale
            raise SettingsError(exclusions.SCALED_AND_KERAS.told(f"loss_scale={scale}", own))
        self._track(update.optimizer)
        with tf.name_scope("tfdist/loss_scale"):
            values = averages_behind(update.gradients)
            finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(v)) for v in values]))
            largest = tf.constant(0.0)
            if how.of_largest:
                largest = tf.reduce_max(tf.stack([tf.reduce_max(tf.abs(v)) for v in map(_not_empty, values)]))
            largest = tf.where(finite, largest, tf.constant(np.inf, tf.float32))
            due = tf.constant(True) if due is None else due
            variable = self._variable(how)
            follow = functools.partial(_follow, how)
            new = tf.numpy_function(follow, [variable.read_value(), due, largest], tf.float64, stateful=True)
            with tf.control_dependencies([variable.assign(tf.ensure_shape(new, [len(LossScaleState._fields)]))]):
                return tf.logical_and(due, finite)

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self._track(optimizer)

    def _track(self, optimizer: Any) -> None:
        """Add the scale's state to the checkpoints of an optimizer."""
        how = self._how()
        if how is not None and not function_state.in_session() and optimizer not in self._tracking:
            self._tracking.add(optimizer)
            track(optimizer, "tfdist_loss_scale", self._variable(how))

    def _how(self) -> LossScale | None:
        switches = self._job.switches
        settings = switches.settings
        if settings.loss_scale == "none" or switches.alone_depth:
            return None
        batches = self._job.world.size * settings.accumulate_steps
        return loss_scale.of(settings.loss_scale, batches, settings.loss_scale_tolerance)

    def _variable(self, how: LossScale) -> Any:
        first = np.array(LossScaleState(how.first, kind=how.kind), np.float64)
        if not function_state.in_session():
            if self._state is None:
                with tf.init_scope():
                    self._state = tf.Variable(first, trainable=False, name=_NAME)
            return self._state
        with tf.init_scope():
            graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, _ATTRIBUTE):
            setattr(graph, _ATTRIBUTE, graph_variable(_NAME, lambda: tf.constant(first)))
        return getattr(graph, _ATTRIBUTE)


loss_scaling_of = functools.cache(LossScaling)  # the one of this process


def seeds(scale: tf.Tensor, targets: Sequence[Any], given: Sequence[Any] | None) -> list[tf.Tensor]:
    """Return the initial gradients for backpropagation: the given ones, or ones, times the scale."""
    given = [None] * len(targets) if given is None else given
    found = []
    for target, one in zip(targets, given, strict=True):
        one = tf.ones_like(target) if one is None else tf.convert_to_tensor(one)
        found.append(one * tf.cast(scale, one.dtype))
    return found


def unscaled(derivatives: Sequence[Any], sources: Sequence[Any], scale: tf.Tensor) -> list[Any]:
    """Return the gradients of the unscaled loss with respect to ``sources``, from those of the scaled loss."""
    with tf.name_scope("tfdist/loss_scale"):
        inverse = 1 / scale
        pairs = zip(derivatives, sources, strict=True)
        return [d if d is None or is_overwritten(source) else times(d, inverse) for d, source in pairs]


def _follow(how: LossScale, values: np.ndarray, due: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Return the state after a step; unchanged if the step is not an update."""
    state = LossScaleState(*values.tolist())
    if not due:
        return values
    if state.kind != how.kind:
        announce(
            f"loss scale: it was {loss_scale.named(state.kind)} so far (in a checkpoint, for example), and is "
            f"{loss_scale.named(how.kind)} now: it begins anew, with {how.first:g}"
        )
        state = LossScaleState(how.first, kind=how.kind)
    new = how.next(loss_scale.counted(state, float(largest)), float(largest))
    if new.in_succession >= _HOPELESS:
        raise FloatingPointError(
            f"the gradients of {_HOPELESS} updates in succession overflowed, the last with a loss scale of "
            f"{state.scale:g}. Training has diverged, or the data are not numbers. Start from an earlier checkpoint "
            "and lower the learning rate, clip, or warm up over more steps"
        )
    skipped = int(new.skipped)
    if skipped > state.skipped and rarely(skipped):
        announce(
            f"loss scale: update {new.updates:.0f} was left out, because its gradients overflowed; so far {skipped} of "
            f"{new.updates:.0f} were left out. The scale was {state.scale:g} and is {new.scale:g} now"
        )
    return np.array(new, np.float64)


def _is_number(target: Any) -> bool:
    return isinstance(target, tf.Tensor | tf.Variable) and target.dtype.is_floating


def averages_behind(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return the averages behind gradients, before a script's clipping, which can make infinite gradients finite."""
    if tf.executing_eagerly():
        return [_values(gradient) for gradient in gradients]
    graph = tf.compat.v1.get_default_graph()
    around, state, found = control_flow_around(graph), make_state(graph), {}
    for gradient in gradients:
        parts = [gradient.values] if isinstance(gradient, tf.IndexedSlices) else [tf.convert_to_tensor(gradient)]
        marked = [marker.tensors[0] for marker in marks.markers_behind(parts, state)]
        seen = [t for t in marked if t.graph is graph and control_flow(t.op) in around]
        found.update({id(t): t for t in (seen if seen and len(seen) == len(marked) else parts)})
    return [_values(tensor) for tensor in found.values()]


def _values(gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
    if values.dtype.is_complex:
        values = tf.abs(values)
    return tf.cast(values, tf.float32) if values.dtype in (tf.float16, tf.bfloat16) else values


def _not_empty(values: tf.Tensor) -> tf.Tensor:
    """Return the values as float32 vector with a 0 appended, because slices without rows have no maximum."""
    return tf.concat([tf.cast(tf.reshape(values, [-1]), tf.float32), [0.0]], 0)
