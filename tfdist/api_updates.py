"""What a script does about updates: rates and their scaling, where accumulated steps and blocks end, and training."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import variables as tf_variables
from tfdist.core.learning_rate import Rule
from tfdist.core.learning_rate import scaled as learning_rate_of_all
from tfdist.graph import job
from tfdist.graph.graph_state import make_state
from tfdist.start import process
from tfdist.updates.larc import Larc, LarcOptimizer, Mode

_process = process()
_job = _process.job
_world = _job.world


@contextlib.contextmanager
def last_step() -> Iterator[None]:
    """Mark the last step of an epoch where steps are accumulated: it is applied with those that are held, as few as
    they are, weighted by what they hold. ``model.fit`` does so by itself.

    Collective: all ranks, at the same step.

    ::

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
    """Average now what the ranks have trained since the last block's end (``TFDIST_SYNC=average`` and ``bmuf``).

    A block that the end of ``fit``, of its epochs or of a monitored session cuts off is ended by itself; this is for
    other loops, before variables are evaluated or saved. Nothing happens where no block is open. What
    ``TFDIST_COMPRESSION=int8`` has left over is brought together, too, for a session's checkpoint.

    Collective: all ranks, between two steps.
    """
    if _world.size > 1:
        from tfdist.updates.checkpointed import left_over_of
        from tfdist.updates.local_sgd import local_sgd_of

        local_sgd_of(_process.steps).end()
        left_over_of(_process.steps).keep()


def keep_own(variables: Any) -> None:
    """Say that variables are meant to be each rank's own: they are left out where the ranks compare what they hold.

    That is for what a training step reads and sets by itself, such as a rank's buffer of experiences. What is left out
    without it: tfdist/README.md, "What the ranks compare".

    Args:
      variables: of ``tf.Variable`` or Keras, in sessions too; or something that has ``weights``, such as a layer.

    ::

        tfdist.keep_own(replay_buffer)
    """
    from tfdist.variables.eager_variables import variables_of

    if _world.size > 1:
        known = _process.steps.variables
        for variable in variables_of(variables):
            if tf.executing_eagerly() and tf_variables.has_name(variable):
                known.own.add(tf_variables.name(variable))
            else:
                make_state(variable.graph).kept_own.add(variable.name)


def ask_to_stop(wanted: bool = True) -> None:
    """Have all ranks know, after the same step, that this one wants training to end. A signal's handler may call it::

        signal.signal(signal.SIGTERM, lambda *_: tfdist.ask_to_stop())
        for batch in batches:
            step(batch)
            if tfdist.asked_to_stop():
                break  # on all ranks: save, and end

    Not collective. It is told with the step's own exchange, and takes no time.

    Args:
      wanted: False takes it back, and forgets what was heard: when training begins anew.
    """
    _job.stop.mine = wanted
    _job.stop.heard &= wanted


def asked_to_stop() -> bool:
    """Whether some rank had asked for it before the ranks last exchanged gradients, or weights (``TFDIST_SYNC``).

    Not collective; after a step the same on all ranks. A request that comes too late for one step is told with the
    next, or with the next block's end.
    """
    return _job.stop.heard or (_world.size == 1 and _job.stop.mine)


def scale_learning_rate(learning_rate: Any, rule: Rule = "linear", warmup_steps: int = 0) -> Any:
    """The learning rate for the batch of all ranks together.

    Args:
      learning_rate: of one process; a number or a tensor.
      rule: ``linear``: times the number of ranks; ``sqrt``: times its square root.
      warmup_steps: the rate grows linearly from ``learning_rate`` to the scaled one over so many global steps
        (``tf.compat.v1.train.get_or_create_global_step``), which makes it a tensor.

    Raises:
      ValueError: an unknown rule, or a negative number of steps.
    """
    return learning_rate_of_all(learning_rate, _world.size, rule, warmup_steps)


def larc(
    optimizer: Any, eta: float = 0.001, mode: Mode = "clip", epsilon: float = 1e-8, learning_rate: Any = None
) -> Any:
    """Give each variable a learning rate of its own, by its norm and its gradient's: layer-wise adaptive rate control.

    What is scaled are averages over the ranks, in Keras after its own clipping and accumulation. With ``local = eta *
    |w| / (|g| + epsilon)`` (You et al. 2017, arXiv:1708.03888, eq. 6)::

        clip     g * min(local / learning_rate, 1)
        scale    g * local

    Where w or g is 0, g stays as it is.

    Args:
      optimizer: of ``tf.compat.v1.train``, or of Keras 3. Use what is returned in its place, and it no more.
      eta: trust coefficient.
      mode: ``clip`` leaves rates below ``local`` as they are; ``scale`` (LARS) multiplies all of them by it.
      epsilon: added to the gradient's norm.
      learning_rate: of an optimizer of TensorFlow 1 that does not tell its own, for ``clip``.

    Returns:
      An optimizer of the same kind.

    Raises:
      ValueError: an unknown mode, a number out of its range, no learning rate to clip by, or LARC already.
      TypeError: another kind of optimizer: see ``larc_gradients``.
    """
    settings = Larc(eta, mode, epsilon)
    if isinstance(optimizer, LarcOptimizer):
        raise ValueError("this optimizer has LARC already")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return LarcOptimizer(optimizer, settings, learning_rate)
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} is neither of tf.compat.v1.train nor of Keras 3: "
            "apply tfdist.larc_gradients(gradients, variables, learning_rate) instead of the gradients"
        )
    if learning_rate is not None:
        raise ValueError(f"learning_rate={learning_rate!r}; an optimizer of Keras knows its own: leave it out")
    from tfdist.updates.larc_keras import LarcKerasOptimizer

    return LarcKerasOptimizer(optimizer, settings)


def larc_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    learning_rate: Any,
    eta: float = 0.001,
    mode: Mode = "clip",
    epsilon: float = 1e-8,
) -> list[Any]:
    """Gradients in hand, scaled as ``larc`` does it, to be applied by any optimizer.

    They may come from ``tf.gradients`` or a tape: what is made of them before they are applied sees averages.

    Args:
      gradients: tensors, ``IndexedSlices`` or None, which stay so.
      variables: in the same order.
      learning_rate: of the optimizer, a number or a tensor; ``scale`` takes no notice of it.
      eta: see ``larc``.
      mode: see ``larc``.
      epsilon: see ``larc``.

    Raises:
      ValueError: an unknown mode, a number out of its range, other numbers of gradients and variables, or no
        learning rate to clip by.
    """
    return Larc(eta, mode, epsilon).gradients(gradients, variables, learning_rate)
