"""Op builder: builds a collective's operations in one order, in a session's graph or a function, or executes them.

A session's graph is the same on all ranks. So control dependencies chain the exchanges of one collective, without
negotiation. Each collective has a channel of its own, so two collectives may run in any order within a step.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfdist.compat import collective_ops
from tfdist.compat.graphs import is_plain_function
from tfdist.core.settings import SettingsError
from tfdist.engine.arrival import Arrival
from tfdist.engine.collective import Collective
from tfdist.engine.engines import DEVICE
from tfdist.engine.exchange import Exchange
from tfdist.graph import function_state
from tfdist.graph.failures import Failures
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless
from tfdist.graph.step_sums import Accumulation


@dataclasses.dataclass(frozen=True)
class Part:
    """One exchange of a collective, with its tensors.

    Attributes:
      exchange: exchange that the part executes.
      tensors: arguments of the exchange.
      outputs: dtypes and static shapes of the exchange's results.
      after: further tensors that must be computed before the exchange begins.
      build: function that computes the part's results from the exchange's results, by TensorFlow operations; None: the
        exchange's results are the part's results.
      counts: the exchange's first result if all ranks have data; None if XLA cannot compile ``build``'s operations.
      values: numbers of the caller's values that the part exchanges, with the same number of results for each.
    """

    exchange: Exchange
    tensors: Sequence[tf.Tensor]
    outputs: Sequence[tf.TensorSpec]
    after: Sequence[tf.Tensor] = ()
    build: Callable[..., list[tf.Tensor]] | None = None
    counts: float | None = None
    values: Sequence[int] = ()


T = TypeVar("T")


def by_value(parts: Sequence[Part], results: Sequence[Sequence[T]]) -> list[list[T]]:
    """Return the results of all parts for each of the caller's values, in the order of their numbers."""
    found: dict[int, list[T]] = {}
    for part, own in zip(parts, results, strict=True):
        of_each = iter(own)
        for number in part.values:
            found.setdefault(number, []).extend(islice(of_each, len(own) // len(part.values)))
    return [found[number] for number in sorted(found)]


Made = Mapping[str, object]


def failures_of(job: Job) -> Failures:
    """Return where exceptions inside the operations built now are noted."""
    return (
        make_state(tf.compat.v1.get_default_graph()).failures if function_state.in_session() else job.functions.failures
    )


def call_back(
    call: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec],
    failures: Failures | None = None,
) -> list[tf.Tensor]:
    """Build or execute an operation that calls a Python function, and note its results as those of all ranks.

    Args:
      call: function (arrays of ``tensors``) -> arrays of ``outputs``.
      tensors: arguments.
      outputs: dtypes and shapes of the results.
      failures: where exceptions of the function are noted; None: the function does this.
    """
    if failures is not None:
        call = failures.noting(call)
    found = tf.numpy_function(function_state.owned(call), tensors, [spec.dtype for spec in outputs], stateful=True)
    results = list(found) if isinstance(found, list | tuple) else [found]
    if not tf.executing_eagerly():
        make_state(tf.compat.v1.get_default_graph()).exchanged.add(results[0].op)
        for result, spec in zip(results, outputs, strict=True):
            result.set_shape(spec.shape)
    return results


_CALLS = {"While", "If", "Case", "StatefulPartitionedCall"}  # operations that may contain other calls


def build_meetings(
    meetings: Sequence[Callable[[int], None]], job: Job, given: Sequence[tf.Tensor], after: Sequence[tf.Operation]
) -> list[tf.Operation]:
    """Let the ranks meet before the function under construction calls a compiled function.

    Args:
      meetings: ``FunctionState.meetings`` of the compiled function.
      job: the ranks and settings.
      given: arguments of the compiled function's call.
      after: operations that run before the ranks meet.

    Returns:
      Operations that must run before the call.
    """

    def call(size_bytes: np.ndarray) -> np.ndarray:
        for meet in meetings:
            meet(int(size_bytes))
        return np.array(True)

    sizes = [tf.size(t, tf.int64) * t.dtype.size for t in given if t.dtype not in (tf.resource, tf.variant)]
    # An earlier loop or call may contain a meeting, and TensorFlow orders only operations on the same variables.
    calls = [op for op in tf.compat.v1.get_default_graph().get_operations() if op.type in _CALLS]
    behind = [*after, *calls, *(t.op for t in given)]
    with tf.device(DEVICE), tf.control_dependencies(behind):
        total = tf.add_n([tf.zeros([], tf.int64), *sizes])
        return [call_back(call, [total], [tf.TensorSpec([], tf.bool)], job.functions.failures)[0].op]


def _check_open(collective: Collective) -> None:
    if collective.channel is None:
        raise RuntimeError(
            f"{collective.name} was run before the ranks agreed on it; run it with a tf.compat.v1.Session, or by "
            "calling the tf.function that holds it"
        )


def check_made(made: Made, now: Made, what: str) -> None:
    """Compare the settings that ``what`` in a function was built by with the present ones.

    Raises:
      SettingsError: the script has changed one.
    """
    if now != made:
        name, value = next((n, v) for n, v in made.items() if now[n] != v)
        raise SettingsError(
            f"tfdist.configure has set {name} to {now[name]!r}. But {what} is in a tf.function that was traced when it "
            f"was {value!r}. Call tfdist.configure before the function's first call, or create the function again (in "
            "Keras: model.compile)"
        )


class _Site:
    """Place where a collective is executed eagerly, or built; see the subclasses.

    Attributes:
      collective: the collective, or the one of an earlier step or function with the same plan.
      key: text by which the next step, and a function that is traced again, find it.
      compiled: True if XLA compiles what is built.
      before: operations that must run before the collective begins.
    """

    compiled = False
    before: Sequence[tf.Operation] = ()

    def __init__(self, collective: Collective, job: Job) -> None:
        self._find(collective, 0)
        job.functions.executed(self.collective)
        job.open([self.collective])

    def _find(self, collective: Collective, number: int) -> None:
        self.key = "\n".join([collective.name, *collective.plan, str(number)])
        self.collective: Collective = collective.group.kept.setdefault(self.key, collective)

    def add(self, results: Sequence[tf.Tensor | tf.Operation]) -> None:
        """Register operations of the collective, or those of their results, in their order."""

    def ends(self, last: Sequence[tf.Tensor]) -> None:
        """Register ``last``, the results of the operations that end the collective, when all operations are built."""

    def check(self) -> None:
        """Check the settings before the collective is executed.

        Raises:
          SettingsError: the script has changed a setting that the collective was built by.
        """


class _InSession(_Site):
    """A graph that a session runs. The script itself chooses when it builds it."""

    def __init__(self, collective: Collective, broadcasts: bool) -> None:
        self.collective = collective
        self._state: GraphState = make_state(tf.compat.v1.get_default_graph())
        self._state.add_collective(collective, broadcasts)

    def add(self, results: Sequence[tf.Tensor | tf.Operation]) -> None:
        for result in results:
            self._state.add_op(getattr(result, "op", result), self.collective)


class _InFunction(_Site):
    """A function under construction."""

    def __init__(
        self, collective: Collective, parts: Sequence[Part], made_by: Callable[[], Made], names: Sequence[str]
    ) -> None:
        graph: Any = tf.compat.v1.get_default_graph()
        self._manager = graph.experimental_acd_manager
        self._made_by, self._made = made_by, made_by()
        self.compiled = bool(function_state.compiled_as())
        if self.compiled:
            _check_compiled(graph, parts)
        self._state = next(function_state.around(graph))
        # Two collectives with the same plan in one function may run at the same time: a number tells them apart.
        plan = "\n".join([collective.name, *collective.plan])
        self._find(collective, self._state.counts[plan])
        self._state.counts[plan] += 1
        self.before = self._state.last
        for state in function_state.around(graph):
            state.collectives[self.collective] = tuple(names)
        if self.compiled:
            # If sizes depend on the call's arguments, these must have the same number of bytes on all ranks.
            self._of_unknown_sizes = any(not tensor.shape.is_fully_defined() for part in parts for tensor in part.after)
            self._state.meetings.append(self._meet)

    def _meet(self, size_bytes: int) -> None:
        """Let the ranks meet, once for all parts. Collective: the group's ranks."""
        _check_open(self.collective)
        self.check()
        first = self.collective.exchanges[0]
        if self._of_unknown_sizes and isinstance(first, Arrival):
            first.size_bytes = size_bytes
        self.collective.communicate(0)

    def add(self, results: Sequence[tf.Tensor | tf.Operation]) -> None:
        # Else TensorFlow would run it after all stateful operations built before, such as a print of the average.
        # (TensorFlow first tries a loop's body in a temporary graph, which has no manager.)
        for result in results if self._manager is not None else ():
            self._manager.run_independently(getattr(result, "op", result))

    def ends(self, last: Sequence[tf.Tensor]) -> None:
        self._state.last = [tensor.op for tensor in last]

    def check(self) -> None:
        check_made(self._made, self._made_by(), self.collective.name)


def _check_compiled(graph: Any, parts: Sequence[Part]) -> None:
    """Refuse a collective that XLA cannot compile, in a function that has ``jit_compile=True``.

    Raises:
      RuntimeError: XLA cannot compile the exchange; or a condition or a loop contains it, so a call may skip it.
    """
    name = function_state.compiled_as()
    if any(part.counts is None for part in parts):
        raise RuntimeError(
            f"tf.function {name} has jit_compile=True, and applies gradients: XLA cannot compile the exchange between "
            "the ranks. Leave jit_compile out of the function that applies gradients; a function inside it that "
            "computes the loss may have it. On GPUs, XLA can compile TFDIST_ENGINE=nccl's exchange of dense gradients"
        )
    if not is_plain_function(graph):
        raise RuntimeError(
            f"tf.function {name} has jit_compile=True, and applies gradients in a condition or a loop. The ranks meet "
            "before each call of a compiled function, once for each exchange. Put the loop outside of the function, or "
            "leave jit_compile out"
        )


class Builder:
    """Builds one collective in the current graph, or executes it eagerly.

    Args:
      collective: collective of the parts' exchanges.
      parts: parts in the order of the exchanges.
      job: the ranks and settings.
      broadcasts: True if the variables that its results train begin with rank 0's values.
      made_by: function that returns the current values of the settings that the parts depend on.
      names: full names of the exchanged tensors, the same in the same order on all ranks.
      accumulation: adds up the gradients of several steps; None: each step is exchanged.

    Attributes:
      collective: the collective that carries out the exchanges; in a function the one that is known already.
    """

    def __init__(
        self,
        collective: Collective,
        parts: Sequence[Part],
        job: Job,
        broadcasts: bool = False,
        made_by: Callable[[], Made] = dict,
        names: Sequence[str] = (),
        accumulation: Accumulation | None = None,
    ) -> None:
        self._site: _Site
        if function_state.in_session():
            self._site = _InSession(collective, broadcasts)
        elif tf.executing_eagerly():
            self._site = _Site(collective, job)
        else:
            self._site = _InFunction(collective, parts, made_by, names)
        self.collective = self._site.collective
        self._parts = parts
        self._failures = failures_of(job)
        self._data_comparison = job.data_comparison
        self._span = self.collective.span
        self._accumulation = accumulation
        self._sums = None if accumulation is None else accumulation.sums(self.collective)

    def build(self) -> list[list[tf.Tensor]]:
        """Return the results of each part."""
        if self._site.compiled:
            return self._compiled()
        with tf.device(DEVICE), tf.control_dependencies(self._site.before):
            results = self._fused() if len(self._parts) == 1 else self._split()
        if self._accumulation is not None:
            self._accumulation.due_in(results[0].pop())
        ended = [of_one[0] for of_one in results if of_one]
        before: Sequence[tf.Tensor] = ()
        for number, part in enumerate(self._parts):
            if part.build is not None:  # these run in one order, too
                with tf.control_dependencies(before):
                    before = results[number] = self._built(part.build, results[number])
                ended += before
        self._site.ends(ended)
        return results

    def _compiled(self) -> list[list[tf.Tensor]]:
        """Build for XLA, which orders operations by their values only: each part's counts depend on the part before."""
        results: list[list[tf.Tensor]] = []
        for number, part in enumerate(self._parts):
            assert part.build is not None and part.counts is not None
            counts = tf.constant(part.counts, tf.float64)
            if results:
                counts = collective_ops.in_order(counts, results[-1][0])
            # A negative key differs from the keys that arrivals return, which are positive.
            key = -1 - (zlib.crc32(f"{self._site.key}\n{number}".encode()) >> 1)
            results.append(self._built(part.build, [counts, tf.constant(key)]))
        self._site.ends([of_one[0] for of_one in results])
        return results

    def _built(self, build: Callable[..., list[tf.Tensor]], results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return a part's built results, noted as exchanged: a search for this rank's own values stops at them."""
        if tf.executing_eagerly():
            return build(*results)
        graph = tf.compat.v1.get_default_graph()
        known = len(graph.get_operations())
        own = [tf.identity(result) for result in build(*results)]
        self._site.add([op for op in graph.get_operations()[known:] if op.op_def.is_stateful])
        make_state(graph).exchanged.update(result.op for result in own)
        return own

    def _fused(self) -> list[list[tf.Tensor]]:
        (part,) = self._parts
        with tf.control_dependencies(part.after):
            return [self._operation(self._whole, 0, part.tensors, self._outputs(0))]

    def _split(self) -> list[list[tf.Tensor]]:
        starts: list[tf.Tensor] = []
        for number, part in enumerate(self._parts):
            with tf.control_dependencies([*starts[-1:], *part.after]):
                starts += self._operation(self._start, number, part.tensors, [tf.TensorSpec([], tf.bool)])
        results: list[list[tf.Tensor]] = []
        # A wait blocks a thread by which TensorFlow's servers answer other ranks: at most one wait at a time.
        one_by_one = any(part.build is not None for part in self._parts)
        for number in range(len(self._parts)):
            after = results[-1][:1] if one_by_one and results else []
            with tf.control_dependencies([*starts, *after]):
                results.append(self._operation(self._finish, number, [], self._outputs(number)))
        return results

    def _outputs(self, number: int) -> Sequence[tf.TensorSpec]:
        """Return one exchange's outputs; if steps are accumulated, the first one also says if this step is applied."""
        outputs = self._parts[number].outputs
        return outputs if self._sums is None or number else [*outputs, tf.TensorSpec([], tf.bool)]

    def _loaded(self, number: int, arrays: Sequence[np.ndarray]) -> bool:
        """Load one exchange's arguments, and return whether the exchange is to run in this step."""
        brought = arrays if self._sums is None else self._sums.bring(number, arrays)
        if brought is not None:
            exchange = self.collective.exchanges[number]
            gradients = self.collective.averages and not isinstance(exchange, Arrival)
            if number == 0 and gradients and self.collective.everyone:
                self._data_comparison.bring(self.collective.name, arrays)
            exchange.load(brought)
        return brought is not None

    def _results(self, number: int) -> list[np.ndarray]:
        exchange, sums = self.collective.exchanges[number], self._sums
        if sums is None:
            return exchange.results()
        nothing = sums.nothing(number)
        results = exchange.results() if nothing is None else nothing
        return results if number else [*results, np.array(sums.due)]

    def _whole(self, number: int, *arrays: np.ndarray) -> list[np.ndarray]:
        if self._loaded(number, arrays):
            self.collective.communicate(number)
        return self._results(number)

    def _start(self, number: int, *arrays: np.ndarray) -> list[np.ndarray]:
        worker = self.collective.worker
        worker.wait_for(number)  # left by a step that ended between start and finish
        if self._loaded(number, arrays):
            worker.submit(number, functools.partial(self.collective.communicate, number))
        return [np.array(True)]

    def _finish(self, number: int) -> list[np.ndarray]:
        with self._span("held up", self.collective.exchanges[number].what):
            self.collective.worker.wait_for(number)
        return self._results(number)

    def _operation(
        self, call: Callable[..., Any], number: int, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Build an operation that calls ``call`` with the number of an exchange and the arrays of ``tensors``."""

        def checked(*arrays: np.ndarray) -> Any:
            _check_open(self.collective)
            self._site.check()
            return call(number, *arrays)

        results = call_back(checked, tensors, outputs, self._failures)
        self._site.add(results[:1])
        return results


def plan_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names of variables in a plan, and a word by which a collective of them differs from others.

    In a session's graph it is a number; a function that is traced again gets the same word.
    """
    if function_state.in_session():
        return list(names), str(len(make_state(tf.compat.v1.get_default_graph()).world_collectives))
    shown = [numberless(name) for name in names]
    return shown, f"({few(shown)})"


def few(names: Sequence[str]) -> str:
    """Return names for a message: up to three, else the first and the last."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"


def signature(kind: str, name: str, tensor: tf.Tensor) -> str:
    """Return a plan's line for one tensor."""
    return f"{kind} {name} {tensor.dtype.name} {tensor.shape}"
