"""Local SGD state: the variables that blocks need in addition to the trained ones; checkpoints contain them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.optimizers import track_all
from tfdist.compat.variables import native
from tfdist.graph import function_state
from tfdist.graph.markers import variable_key, variable_name
from tfdist.updates._optimizer_state import Slot
from tfdist.updates.bmuf import BlockSettings
from tfdist.updates.error_feedback import graph_variable

_FOR_EVER = 2**40
Make = Callable[[str, Sequence[int], Any, float], Any]


class LocalSGDState:
    """State of the blocks of a set of variables that are trained together.

    Args:
      variables: trained variables.
      rule: settings of blocks.
      make: function (name, shape, dtype, first value) -> variable.

    Attributes:
      variables: trained variables, as TensorFlow's.
      names: names of the trained variables.
      keys: keys of the trained variables (``markers.variable_key``).
      made: variables that this state has made.
      position: number of local steps in the open block; below 0: minus the number of warm-up steps that are left.
      lookahead: factor of ``BlockSettings.lookahead`` with which this block began; None without a filter.
      starts: values of the variables at the block's beginning; empty without a filter.
      changes: changes of the variables by the last block; empty without a filter.
      statistics: moving statistics, which a block's end sets to the mean over the ranks.
      slots: the optimizer's own variables that a block's end averages or resets.
      taken_over: True if another optimizer trains these variables now.
    """

    def __init__(self, variables: Sequence[Any], rule: BlockSettings, make: Make) -> None:
        self.variables = [native(v) for v in variables]
        self.names = [variable_name(v) for v in variables]
        self.keys = [variable_key(v) for v in self.variables]
        self.made: list[Any] = []

        def own(name: str, shape: Sequence[int], dtype: Any, value: float = 0) -> Any:
            self.made.append(make(name, shape, dtype, value))
            return native(self.made[-1])

        self.position = own("block_position", [], tf.int64, -rule.warmup)
        filtered = [] if rule.plain else list(zip(self.names, self.variables, strict=True))
        self.lookahead = own("block_lookahead", [], tf.float32) if filtered else None
        kinds = {
            kind: [own(f"{n.removesuffix(':0')}/{kind}", v.shape, v.dtype.base_dtype) for n, v in filtered]
            for kind in ("block_start", "block_change")
        }
        self.starts, self.changes = kinds["block_start"], kinds["block_change"]
        self.statistics: list[Any] = []
        self.slots: list[Slot] = []
        self.taken_over = False

    @property
    def all(self) -> list[Any]:
        """All variables that a block's end reads or sets."""
        own = [self.position, *([] if self.lookahead is None else [self.lookahead]), *self.starts, *self.changes]
        return [*self.variables, *self.statistics, *(slot.variable for slot in self.slots), *own]

    def take_over(self) -> None:
        """Note that another optimizer trains these variables from now on."""
        self.taken_over = True
        self.position.assign(-_FOR_EVER)

    @staticmethod
    def check_not_taken_over(position: tf.Tensor, name: str) -> Any:
        """Return an operation that fails if a traced function still trains with the earlier optimizer."""
        told = f"another optimizer has begun to train {name}: with blocks, only one optimizer may train a variable"
        return tf.debugging.assert_greater(position, tf.constant(-_FOR_EVER // 2, tf.int64), message=told)


def of_keras(optimizer: Any, variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Make a state whose variables belong to an optimizer of Keras 3, which saves them."""

    def make(name: str, shape: Sequence[int], dtype: Any, value: float) -> Any:
        def filled(shape: Any, dtype: Any = None) -> Any:
            return tf.fill(shape, tf.cast(value, dtype))

        with tf.init_scope():
            return optimizer.add_variable(shape, initializer=filled, dtype=dtype.name, name=name.replace("/", "_"))

    return LocalSGDState(variables, rule, make)


def of_graph(variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Make a state whose variables are in a graph. A Saver that is made later saves all variables of the graph."""

    def make(name: str, shape: Sequence[int], dtype: Any, value: float) -> Any:
        return graph_variable(name, lambda: tf.fill(shape, tf.constant(value, dtype)))

    return LocalSGDState(variables, rule, make)


def of_optimizer(optimizer: Any, variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Make a state whose variables are tracked by an optimizer, so that ``tf.train.Checkpoint`` saves them."""
    holder = tf.Module()
    holder.made = []

    def make(name: str, shape: Sequence[int], dtype: Any, value: float) -> Any:
        with tf.init_scope():
            holder.made.append(tf.Variable(tf.fill(shape, tf.constant(value, dtype)), trainable=False, name=name))
        return holder.made[-1]

    state = LocalSGDState(variables, rule, make)
    track_all(optimizer, "tfdist_blocks", holder)
    return state


def make_for(optimizer: Any, variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Make a state for the current context: a session's graph, Keras 3, or another optimizer."""
    if function_state.in_session():
        return of_graph(variables, rule)
    if hasattr(optimizer, "stateless_apply"):
        return of_keras(optimizer, variables, rule)
    return of_optimizer(optimizer, variables, rule)
