"""Updates, for scripts: learning rates, LARC, the ends of accumulated steps and of blocks, and requests to stop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import variables as tf_variables
from tfdist.compat.optimizers import of_keras_3
from tfdist.graph import job
from tfdist.graph.graph_state import make_state
from tfdist.start import process
from tfdist.updates.larc import Larc, Mode, set_larc
from tfdist.updates.learning_rate import Rule, factor, warmed

_process = process()
_job = _process.job
_world = _job.world


@contextlib.contextmanager
def last_step() -> Iterator[None]:
    """Mark the last step of an epoch when steps are accumulated. ``model.fit`` does this automatically.

    This step and the held steps before it are applied together, although there may be fewer than usual. The mean is
    over the steps that are held.

    Collective: all ranks, at the same step.

    Example::

        with tfdist.last_step():
            session.run(train_op)  # or step(batch)
    """
    switches = _job.switches
    kept, switches.last_steps = switches.last_steps, job.LastSteps(1)
    try:
        yield
    finally:
        switches.last_steps = kept


def end_block() -> None:
    """End all open blocks of local steps now: afterwards all ranks have the same variables (``TFDIST_SYNC``).

    Open blocks end automatically at the end of ``fit``, of its epochs and of a monitored session. Call this in other
    loops, before variables are evaluated or saved. Without an open block it changes nothing. With a
    ``TFDIST_COMPRESSION`` that rounds, it also sends the rounding errors of all ranks.

    Collective: all ranks, between two steps.

    Raises:
      DisagreementError: the ranks are in different steps of their blocks, or have trained different variables.

    Example:
      >>> tfdist.end_block()
    """
    if _world.size > 1:
        from tfdist.updates.error_feedback import error_feedback_of
        from tfdist.updates.local_sgd import local_sgd_of

        local_sgd_of(_process.steps).end()
        error_feedback_of(_process.steps).keep()


def keep_own(variables: Any) -> None:
    """Exclude variables from the replica check, because each rank is meant to have its own values.

    Use it for variables that a training step itself reads and sets, such as a rank's replay buffer. Variables that
    are excluded without this call: tfdist/docs/semantics.md, "Comparison of replicas".

    Args:
      variables: variables of TensorFlow or Keras, also in sessions; or an object with ``weights``, such as a layer.

    Example:
      >>> replay_buffer = tf.Variable(tf.zeros([4, 2]), trainable=False)
      >>> tfdist.keep_own(replay_buffer)
    """
    from tfdist.replicas.eager_variables import variables_of

    if _world.size > 1:
        known = _process.steps.variables
        for variable in variables_of(variables):
            if tf.executing_eagerly() and tf_variables.has_name(variable):
                known.own.add(tf_variables.name(variable))
            else:
                make_state(variable.graph).kept_own.add(variable.name)


def ask_to_stop(wanted: bool = True) -> None:
    """Request the end of training; ``asked_to_stop`` then returns True on all ranks after the same step.

    A signal handler may call it. Not collective. The request travels with the step's own exchange and costs no time.

    Args:
      wanted: False withdraws the request and clears requests of other ranks, for example before a new training.

    Example::

        signal.signal(signal.SIGTERM, lambda *_: tfdist.ask_to_stop())
        for batch in batches:
            step(batch)
            if tfdist.asked_to_stop():
                break  # on all ranks: save, and end
    """
    _job.stop.mine = wanted
    _job.stop.heard &= wanted


def asked_to_stop() -> bool:
    """Return whether a rank had called ``ask_to_stop`` before the last exchange of gradients, or of weights
    (``TFDIST_SYNC``).

    Not collective. After a step the result is the same on all ranks. A request that is too late for the exchange of
    one step travels with the next exchange.

    Example:
      >>> tfdist.asked_to_stop()
      False
    """
    return _job.stop.heard or (_world.size == 1 and _job.stop.mine)


def scale_learning_rate(learning_rate: Any, rule: Rule = "linear", warmup_steps: int = 0) -> Any:
    """Return the learning rate for the batch of all ranks together.

    Args:
      learning_rate: number or tensor, the rate for one process.
      rule: ``linear`` multiplies the rate by the number of ranks, ``sqrt`` by its square root.
      warmup_steps: number of global steps over which the rate grows linearly to the scaled rate. The result is then a
        tensor (``tf.compat.v1.train.get_or_create_global_step``), unless there is one rank. 0 for no warm-up.

    Raises:
      ValueError: an unknown rule, or a negative number of steps.

    Example:
      >>> tfdist.scale_learning_rate(0.1) == 0.1 * tfdist.size()
      True
    """
    scale = factor(_world.size, rule, warmup_steps)
    if warmup_steps == 0 or _world.size == 1:
        return learning_rate * scale
    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.float32)
    return learning_rate * warmed(scale, step, warmup_steps, tf.minimum)


def larc(
    optimizer: Any, eta: float = 0.001, mode: Mode = "clip", epsilon: float = 1e-8, learning_rate: Any = None
) -> Any:
    """Give an optimizer layer-wise adaptive rate control: a learning rate for each variable.

    The rate depends on the norms of the variable w and of its gradient g. The gradients are averages over the ranks,
    in Keras after its own clipping and accumulation. With ``local = eta * |w| / (|g| + epsilon)`` (You et al. 2017,
    arXiv:1708.03888, eq. 6)::

        clip     g * min(local / learning_rate, 1)
        scale    g * local

    Where w or g is 0, g stays as it is.

    Args:
      optimizer: optimizer of ``tf.compat.v1.train`` or of Keras 3. Saved models do not contain LARC: call this again
        for the optimizer of a loaded model.
      eta: trust coefficient.
      mode: ``clip`` leaves rates below ``local`` unchanged; ``scale`` (LARS) multiplies all rates by ``local``.
      epsilon: number that is added to the gradient's norm.
      learning_rate: for ``clip``, with an optimizer of TensorFlow 1 that does not expose its rate; None otherwise.

    Returns:
      The same optimizer.

    Raises:
      ValueError: an unknown mode, a number out of its range, no learning rate for ``clip``, or an optimizer that has
        LARC already.
      TypeError: another kind of optimizer: see ``larc_gradients``.

    Example:
      >>> optimizer = tfdist.larc(keras.optimizers.SGD(0.1), eta=0.01)
    """
    settings = Larc(eta, mode, epsilon)
    if of_keras_3(optimizer) and learning_rate is not None:
        raise ValueError(f"learning_rate={learning_rate!r}; a Keras optimizer has its own rate: leave it out")
    if not of_keras_3(optimizer) and not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} is neither of tf.compat.v1.train nor of Keras 3: "
            "apply the result of tfdist.larc_gradients(gradients, variables, learning_rate) instead of the gradients"
        )
    set_larc(optimizer, settings, learning_rate)
    return optimizer


def larc_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    learning_rate: Any,
    eta: float = 0.001,
    mode: Mode = "clip",
    epsilon: float = 1e-8,
) -> list[Any]:
    """Return gradients scaled as ``larc`` scales them, for any optimizer.

    The gradients may come from ``tf.gradients`` or a tape. Operations on them before they are applied read averages.

    Args:
      gradients: tensors, ``IndexedSlices`` or None; None stays None.
      variables: variables of the gradients, in the same order.
      learning_rate: number or tensor, the optimizer's rate; ``scale`` ignores it.
      eta: see ``larc``.
      mode: see ``larc``.
      epsilon: see ``larc``.

    Raises:
      ValueError: an unknown mode, a number out of its range, different numbers of gradients and variables, or no
        learning rate for ``clip``.

    Example:
      >>> gradients, variables = [tf.constant([3.0, 4.0])], [tf.Variable([0.0, 1.0])]
      >>> scaled = tfdist.larc_gradients(gradients, variables, learning_rate=0.1)
    """
    return Larc(eta, mode, epsilon).gradients(gradients, variables, learning_rate)
