"""Local SGD state: the variables that blocks need in addition to the trained ones; checkpoints contain them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.optimizers import of_keras_3, track
from tfdist.compat.variables import native
from tfdist.core.settings import SettingsError
from tfdist.engine.collective import Collective
from tfdist.graph.markers import numberless, variable_key, variable_name
from tfdist.graph.variable_average import VariableAverage
from tfdist.replicas.program import starts_from
from tfdist.replicas.session_program import settable
from tfdist.updates._optimizer_state import Slot
from tfdist.updates.bmuf import BlockSettings, fragments_of
from tfdist.updates.error_feedback import graph_variable

_ATTRIBUTE = "_tfdist_blocks"  # attribute of a session's graph: a list of its states
_MOVING = "_tfdist_moving_averages"  # attribute of a trained variable: list of weak references
Make = Callable[[str, Sequence[int], Any, float], Any]


class LocalSGDState:
    """State of the blocks of a set of variables that are trained together.

    Args:
      variables: trained variables.
      rule: settings of blocks.
      make: function (name, shape, dtype, first value) -> variable.

    Attributes:
      rule: settings of blocks.
      variables: trained variables, as TensorFlow's.
      names: names of the trained variables.
      keys: keys of the trained variables (``markers.variable_key``).
      made: variables that this state has made.
      number: number of this state in the process; the same on all ranks.
      position: number of local steps since all ranks had the same values; below 0: minus the number of warm-up steps
        that are left.
      starts: values of the variables with which their blocks began.
      changes: filtered changes of the variables by the last block; empty without a filter.
      fragments: positions of the variables of each fragment.
      statistics: moving statistics, which a block's end sets to the mean over the ranks.
      slots: the optimizer's own variables that a block's end averages or resets.
      averages: averages of the fragments' changes, the last one that was built by its collective.
      in_flight: average that was begun and whose result is not merged yet; None if there is none.
      in_flight_since: position in the block when it was begun.
      reached: positions, in the present call, after which something is exchanged or merged.
      taken_over: True if another optimizer trains these variables now.
    """

    _numbers = itertools.count()

    def __init__(self, variables: Sequence[Any], rule: BlockSettings, make: Make) -> None:
        self.rule = rule
        self.variables = [native(v) for v in variables]
        self.names = [variable_name(v) for v in variables]
        self.keys = [variable_key(v) for v in self.variables]
        self.made: list[Any] = []
        self.number = next(self._numbers)
        layers = [name.rpartition("/")[0] or name for name in self.names]
        self.fragments = fragments_of(layers, [v.shape.num_elements() or 0 for v in self.variables], rule.fragments)

        def own(name: str, shape: Sequence[int], dtype: Any, value: float = 0) -> Any:
            self.made.append(make(name, shape, dtype, value))
            return native(self.made[-1])

        def like(kind: str) -> list[Any]:
            pairs = zip(self.names, self.variables, strict=True)
            return [own(f"{n.removesuffix(':0')}/{kind}", v.shape, v.dtype.base_dtype) for n, v in pairs]

        self.position = own("block_position", [], tf.int64, -rule.warmup)
        self.starts = like("block_start")
        self.changes = [] if rule.plain else like("block_change")
        for variable, start in zip(self.variables, self.starts, strict=True):
            starts_from(variable, start)
        self.statistics: list[Any] = []
        self.slots: list[Slot] = []
        self.averages: dict[Collective, VariableAverage] = {}
        self.in_flight: VariableAverage | None = None
        self.in_flight_since = 0
        self.reached: list[int] = []
        self.taken_over = False
        self._settled: dict[Collective, int] = {}  # step after which what was lost was taken

    @property
    def averaged_whole(self) -> list[Any]:
        """Variables whose values each exchange of the last fragment averages."""
        return [*self.statistics, *(slot.variable for slot in self.slots if self.rule.state == "average")]

    @property
    def moving(self) -> list[Any]:
        """Moving averages of the trained variables (``tf.train.ExponentialMovingAverage``)."""
        there = (average() for variable in self.variables for average in getattr(variable, _MOVING, ()))
        return [average for average in there if average is not None and average.dtype.is_floating]

    def adopt(self, rule: BlockSettings) -> None:
        """Continue with other settings.

        Raises:
          SettingsError: they need other variables than this state has made.
        """
        before, now = (f"filter: {not r.plain}, block_fragments: {r.fragments}" for r in (self.rule, rule))
        if before != now:
            raise SettingsError(
                f"the blocks of {self.names[0]} have begun with other settings ({before}) than there are now ({now}): "
                "make a new optimizer after tfdist.configure"
            )
        self.rule = rule

    def described(self, position: int) -> str:
        """Return a line that describes an open block, and must be the same on all ranks."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        numbers = sum(v.shape.num_elements() or 0 for v in self.variables)
        told = f"step {position} of the block of {numberless(self.names[0])}{more}, {numbers} numbers"
        if self.in_flight is not None:
            told += f", fragment {self.in_flight.fragment} travels since step {self.in_flight_since}"
        return told + (", with rounding errors" if self.keeps_back else "")

    @property
    def _rounded(self) -> list[VariableAverage]:
        """Averages that have lost something by rounding since it was taken; the same on all ranks."""
        known = self.averages.values()
        return [a for a in known if a.rounds and a.collective.step > self._settled.get(a.collective, 0)]

    @property
    def keeps_back(self) -> bool:
        """Whether the last exchanges have lost something by rounding; the same on all ranks."""
        return bool(self._rounded)

    def take_lost(self) -> dict[int, np.ndarray]:
        """Take what rounding has lost on this rank: float32 [elements] by the positions of the variables."""
        found: dict[int, np.ndarray] = {}
        for average in self._rounded:
            self._settled[average.collective] = average.collective.step
            for position, lost in zip(self.fragments[average.fragment], average.take_lost(), strict=False):
                found[position] = found.get(position, 0) + lost
        return found


def moves(variable: Any, average: Any) -> None:
    """Note a moving average of a trained variable."""
    known = [reference for reference in getattr(variable, _MOVING, ()) if reference() is not None]
    if all(reference() is not average for reference in known):
        setattr(variable, _MOVING, [*known, weakref.ref(average)])


def states_of(graph: Any) -> list[LocalSGDState]:
    """Return the states in a session's graph."""
    return list(getattr(graph, _ATTRIBUTE, ()))


def of_graph(variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Return the state for variables in a session's graph. Two places that train the same variables share one state.

    A Saver that is made later saves all variables of the graph.

    Raises:
      RuntimeError: another place trains some of the variables, or a block's end cannot set one.
    """
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph()
    keys = [variable_key(v) for v in variables]
    for state in states_of(graph):
        if state.keys == keys:
            return state
        if not set(keys).isdisjoint(state.keys):
            both = next(name for name, key in zip(state.names, state.keys, strict=True) if key in keys)
            raise RuntimeError(
                f"{both} is trained in two places of this graph, with different other variables. A block needs the "
                "same variables in both places: apply gradients of the same variables, or use TFDIST_SYNC=gradients"
            )
    others = [variable_name(v) for v in variables if v.name not in settable(graph)]
    if others:
        raise RuntimeError(
            f"{others[0]} is trained in blocks, and is not among the graph's global variables, which a block's end "
            "sets. Make it with an initial value, in tf.compat.v1.GraphKeys.GLOBAL_VARIABLES"
        )

    def make(name: str, shape: Sequence[int], dtype: Any, value: float) -> Any:
        return graph_variable(name, lambda: tf.fill(shape, tf.constant(value, dtype)))

    new = LocalSGDState(variables, rule, make)
    setattr(graph, _ATTRIBUTE, [*states_of(graph), new])
    return new


def of_optimizer(optimizer: Any, variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Make a state whose variables are an optimizer's, of Keras 3 or another one, so that its checkpoint has them."""
    tracked = tf.Module()
    tracked.made = []

    def make(name: str, shape: Sequence[int], dtype: Any, value: float) -> Any:
        def filled(shape: Any, dtype: Any) -> Any:
            return tf.fill(shape, tf.cast(value, dtype))

        with tf.init_scope():
            if of_keras_3(optimizer):
                return optimizer.add_variable(shape, initializer=filled, dtype=dtype.name, name=name.replace("/", "_"))
            tracked.made.append(tf.Variable(filled(shape, dtype), trainable=False, name=name))
            return tracked.made[-1]

    state = LocalSGDState(variables, rule, make)
    if not of_keras_3(optimizer):
        track(optimizer, "tfdist_blocks", tracked)
    return state
