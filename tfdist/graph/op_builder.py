"""Op builder: the operations of a collective, chained in one order, in a session's graph, in a function, or at once.

A session's graph is the same on all ranks, so the exchanges of one collective are chained with control dependencies and
need no negotiation; each collective has a channel of its own, so that two of them may run in any order within a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.compat import collective_ops
from tfdist.compat.graphs import is_plain_function
from tfdist.core.settings import SettingsError
from tfdist.engine.arrival import Arrival
from tfdist.engine.collective import Collective
from tfdist.engine.exchange import Exchange
from tfdist.graph import function_state
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.job import Job
from tfdist.graph.step_sums import Accumulation


@dataclasses.dataclass(frozen=True)
class Part:
    """One exchange of a collective, as it is built.

    Attributes:
      exchange: what is done.
      tensors: its arguments.
      outputs: dtypes and static shapes of its results.
      after: what must have been computed before it begins, beside its arguments.
      build: makes of its results, by operations of TensorFlow's, what the part results in; None: that is it.
      counts: the first of its results where all ranks have data, if XLA can compile what ``build`` builds.
    """

    exchange: Exchange
    tensors: Sequence[tf.Tensor]
    outputs: Sequence[tf.TensorSpec]
    after: Sequence[tf.Tensor] = ()
    build: Callable[..., list[tf.Tensor]] | None = None
    counts: float | None = None


Made = Mapping[str, object]


def build(
    collective: Collective,
    parts: Sequence[Part],
    job: Job,
    broadcasts: bool = False,
    made_by: Callable[[], Made] = dict,
    names: Sequence[str] = (),
    accumulation: Accumulation | None = None,
) -> list[list[tf.Tensor]]:
    """Build a collective where TensorFlow is building now, or execute it.

    Args:
      collective: of the parts' exchanges.
      parts: in their order.
      job: whose it is.
      broadcasts: the variables that its results train are to begin with rank 0's values.
      made_by: the settings that the parts follow from, as they are when it is called.
      names: in full, of what it exchanges: the same names must stand in the same order on all ranks.
      accumulation: adds up what several steps bring; None: each step is exchanged.

    Returns:
      The results of each part.
    """
    return _Builder(collective, parts, job, broadcasts, made_by, names, accumulation).build()


_CALLS = {"While", "If", "Case", "StatefulPartitionedCall"}  # that may hold other calls


def build_meetings(
    meetings: Sequence[Callable[[int], None]], job: Job, given: Sequence[tf.Tensor], after: Sequence[tf.Operation]
) -> list[tf.Operation]:
    """Have the ranks meet before a compiled function is called in the one under construction.

    Args:
      meetings: of the compiled function.
      job: whose they are.
      given: what the compiled function is called with.
      after: what is done before the ranks meet.

    Returns:
      What must be done before the call.
    """

    def call(size_bytes: np.ndarray) -> np.ndarray:
        try:
            for meet in meetings:
                meet(int(size_bytes))
        except BaseException as error:
            job.functions.failures.note(error)
            raise
        return np.array(True)

    sizes = [tf.size(t, tf.int64) * t.dtype.size for t in given if t.dtype not in (tf.resource, tf.variant)]
    # (TensorFlow orders what has an effect on the same variables: the ranks may have to meet in a loop before.)
    calls = [op for op in tf.compat.v1.get_default_graph().get_operations() if op.type in _CALLS]
    behind = [*after, *calls, *(t.op for t in given)]
    with tf.device(job.engines.device), tf.control_dependencies(behind), function_state.owning_callbacks():
        total = tf.add_n([tf.zeros([], tf.int64), *sizes])
        return [tf.numpy_function(call, [total], tf.bool, stateful=True).op]


def _check_open(collective: Collective) -> None:
    if collective.channel is None:
        raise RuntimeError(
            f"{collective.name} was run before the ranks agreed on it; run it with a tf.compat.v1.Session, or by "
            "calling the tf.function that holds it"
        )


class _Site(Protocol):
    """Where a collective is built: in a session's graph, in a function, or nowhere, to be executed at once."""

    collective: Collective
    compiled: bool
    key: str

    def before(self) -> list[tf.Operation]:
        """What must be done before the collective begins."""

    def add(self, results: Sequence[tf.Tensor]) -> None:
        """One operation of it has been built."""

    def add_built(self, ops: Sequence[tf.Operation]) -> None:
        """An exchange has built these behind it."""

    def built(self, last: Sequence[tf.Tensor]) -> None:
        """All have been; these are the results of those that end it."""

    def check(self) -> None:
        """It is about to be executed.

        Raises:
          SettingsError: it would do otherwise than the script has configured since.
        """

    def failed(self, error: BaseException) -> None:
        """Something has gone wrong inside it, to be raised instead of TensorFlow's wrapping."""


class _InSession:
    """In a graph that a session runs."""

    compiled = False
    key = ""

    def __init__(self, collective: Collective, broadcasts: bool) -> None:
        self.collective = collective
        self._state: GraphState = make_state(tf.compat.v1.get_default_graph())
        self._state.add_collective(collective, broadcasts)

    def before(self) -> list[tf.Operation]:
        return []

    def add(self, results: Sequence[tf.Tensor]) -> None:
        self._state.add_op(results[0].op, self.collective)

    def add_built(self, ops: Sequence[tf.Operation]) -> None:
        pass

    def built(self, last: Sequence[tf.Tensor]) -> None:
        pass

    def check(self) -> None:
        """Who has built a graph knows when."""

    def failed(self, error: BaseException) -> None:
        self._state.failures.note(error)


class _OutsideSessions:
    """In a function, or executed at once."""

    def __init__(
        self,
        collective: Collective,
        parts: Sequence[Part],
        job: Job,
        made_by: Callable[[], Made],
        names: Sequence[str],
    ) -> None:
        self._graph = function_state.current()
        self._job = job
        self._made_by, self._made = made_by, made_by()
        name = "" if self._graph is None else function_state.compiled_as(self._graph)
        self.compiled = bool(name)
        key = "\n".join([collective.name, *collective.plan])
        number = 0
        if self._graph is not None:
            if name:
                _check_compiled(self._graph, name, parts)
            # Two that exchange the same in one function may be at work at the same time: each has its own.
            own = next(function_state.around(self._graph))
            number = own.counts[key]
            own.counts[key] += 1
        # A function that is traced again, and the next eager step, find theirs.
        self.key = f"{key}\n{number}"
        self.collective = job.functions.known(self.key, collective)
        for state in function_state.around(self._graph):
            state.collectives[self.collective] = tuple(names)
        if self.compiled:
            # Where sizes follow from what the function is called with, that must have one size.
            self._of_unknown_sizes = any(not tensor.shape.is_fully_defined() for part in parts for tensor in part.after)
            own.meetings.append(self._meet)

    def _meet(self, size_bytes: int) -> None:
        """For all parts. Collective: the group's ranks."""
        _check_open(self.collective)
        self.check()
        first = self.collective.exchanges[0]
        if self._of_unknown_sizes and isinstance(first, Arrival):
            first.size_bytes = size_bytes
        self.collective.communicate(0)

    def before(self) -> list[tf.Operation]:
        if self._graph is None:
            self._job.functions.executed(self.collective)
            self._job.open([self.collective])
            return []
        return list(next(function_state.around(self._graph)).last)

    def add(self, results: Sequence[tf.Tensor]) -> None:
        self.add_built([results[0].op])

    def add_built(self, ops: Sequence[tf.Operation]) -> None:
        assert self._graph is not None
        # TensorFlow would put it after whatever has an effect and was built before, such as a print of the average.
        # (A loop's body is first tried in a graph without a manager, to be thrown away.)
        if self._graph.experimental_acd_manager is not None:
            for op in ops:
                self._graph.experimental_acd_manager.run_independently(op)

    def built(self, last: Sequence[tf.Tensor]) -> None:
        if self._graph is not None:
            next(function_state.around(self._graph)).last = [tensor.op for tensor in last]

    def check(self) -> None:
        if self._graph is None:
            return  # it was made of the settings just now
        now = self._made_by()
        if now != self._made:
            name, value = next((n, v) for n, v in self._made.items() if now[n] != v)
            raise SettingsError(
                f"tfdist.configure has made {name} {now[name]!r}, but {self.collective.name} stands in a tf.function "
                f"that was traced when it was {value!r}: call tfdist.configure before the function's first call, or "
                "make the function anew (in Keras: model.compile)"
            )

    def failed(self, error: BaseException) -> None:
        if self._graph is not None:  # else it is raised as it is
            self._job.functions.failures.note(error)


def _check_compiled(graph: Any, name: str, parts: Sequence[Part]) -> None:
    """Refuse what XLA cannot compile in a function that has ``jit_compile=True``.

    Raises:
      RuntimeError: the exchange, or that it is in a condition or a loop, where it may not be made in each call.
    """
    if any(part.counts is None for part in parts):
        raise RuntimeError(
            f"tf.function {name} has jit_compile=True, and applies gradients: XLA cannot compile the exchange between "
            "the ranks. Leave jit_compile out of the function that applies gradients; a function inside it that "
            "computes the loss may have it. On GPUs TFDIST_ENGINE=nccl exchanges dense gradients so that XLA can"
        )
    if not is_plain_function(graph):
        raise RuntimeError(
            f"tf.function {name} has jit_compile=True, and applies gradients in a condition or a loop: the ranks meet "
            "before each call of a compiled function, once for each exchange. Have the loop outside of it, or leave "
            "jit_compile out"
        )


class _Builder:
    def __init__(
        self,
        collective: Collective,
        parts: Sequence[Part],
        job: Job,
        broadcasts: bool,
        made_by: Callable[[], Made],
        names: Sequence[str],
        accumulation: Accumulation | None,
    ) -> None:
        self._site: _Site = (
            _InSession(collective, broadcasts)
            if function_state.in_session()
            else _OutsideSessions(collective, parts, job, made_by, names)
        )
        self._collective = self._site.collective
        self._parts = parts
        self._data_comparison = job.data_comparison
        self._device = job.engines.device
        self._span = job.recorder.spans(self._collective)
        self._accumulation = accumulation
        self._sums = None if accumulation is None else accumulation.sums(self._collective)

    def build(self) -> list[list[tf.Tensor]]:
        if self._site.compiled:
            return self._compiled()
        with tf.device(self._device), tf.control_dependencies(self._site.before()):
            results = self._fused() if len(self._parts) == 1 else self._split()
        if self._accumulation is not None:
            self._accumulation.built(results[0].pop())
        ended = [of_one[0] for of_one in results if of_one]
        before: Sequence[tf.Tensor] = ()
        for number, part in enumerate(self._parts):
            if part.build is not None:  # in one order, too
                with tf.control_dependencies(before):
                    before = results[number] = self._built(part.build, results[number])
                ended += before
        self._site.built(ended)
        return results

    def _compiled(self) -> list[list[tf.Tensor]]:
        """For XLA, which knows no other order than that of values: each part's counts come after the part before."""
        results: list[list[tf.Tensor]] = []
        for number, part in enumerate(self._parts):
            assert part.build is not None and part.counts is not None
            counts = tf.constant(part.counts, tf.float64)
            if results:
                counts = collective_ops.in_order(counts, results[-1][0])
            # No other's: those of the exchanges for which the ranks meet are positive.
            key = -1 - (zlib.crc32(f"{self._site.key}\n{number}".encode()) >> 1)
            results.append(self._built(part.build, [counts, tf.constant(key)]))
        self._site.built([of_one[0] for of_one in results])
        return results

    def _built(self, build: Callable[..., list[tf.Tensor]], results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What an exchange builds, as exchanged: who looks for this rank's own values behind it stops there."""
        if tf.executing_eagerly():
            return build(*results)
        graph = tf.compat.v1.get_default_graph()
        known = len(graph.get_operations())
        own = [tf.identity(result) for result in build(*results)]
        self._site.add_built([op for op in graph.get_operations()[known:] if op.op_def.is_stateful])
        make_state(graph).exchanged.update(result.op for result in own)
        return own

    def _fused(self) -> list[list[tf.Tensor]]:
        (exchange,) = self._collective.exchanges

        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            with self._guarded():
                if self._loaded(0, arrays):
                    self._collective.communicate(0)
                return self._results(0)

        with tf.control_dependencies(self._parts[0].after):
            return [self._operation(call, self._parts[0].tensors, self._outputs(0))]

    def _split(self) -> list[list[tf.Tensor]]:
        starts: list[tf.Tensor] = []
        for number, part in enumerate(self._parts):
            with tf.control_dependencies([*starts[-1:], *part.after]):
                starts += self._operation(self._start(number), part.tensors, [tf.TensorSpec([], tf.bool)])
        results: list[list[tf.Tensor]] = []
        # Where TensorFlow's servers carry tensors, a wait holds a thread that they answer other ranks by: one at most.
        one_by_one = any(part.build is not None for part in self._parts)
        for number in range(len(self._parts)):
            after = results[-1][:1] if one_by_one and results else []
            with tf.control_dependencies([*starts, *after]):
                results.append(self._operation(self._finish(number), [], self._outputs(number)))
        return results

    def _outputs(self, number: int) -> Sequence[tf.TensorSpec]:
        """Of one exchange; the first one's operation tells, too, whether this step is to be applied."""
        outputs = self._parts[number].outputs
        return outputs if self._sums is None or number else [*outputs, tf.TensorSpec([], tf.bool)]

    def _loaded(self, number: int, arrays: Sequence[np.ndarray]) -> bool:
        """Whether one exchange has got its arguments, and is to be carried out in this step."""
        brought = arrays if self._sums is None else self._sums.bring(number, arrays)
        if brought is not None:
            if number == 0 and self._collective.averages and self._collective.everyone:
                self._data_comparison.bring(arrays)
            self._collective.exchanges[number].load(brought)
        return brought is not None

    def _results(self, number: int) -> list[np.ndarray]:
        exchange, sums = self._collective.exchanges[number], self._sums
        if sums is None:
            return exchange.results()
        nothing = sums.nothing(number)
        results = exchange.results() if nothing is None else nothing
        return results if number else [*results, np.array(sums.due)]

    def _start(self, number: int) -> Callable[..., list[np.ndarray]]:
        worker = self._collective.worker

        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            with self._guarded():
                worker.wait_for(number)  # of a step that was given up between start and finish
                if self._loaded(number, arrays):
                    worker.submit(number, functools.partial(self._collective.communicate, number))
                return [np.array(True)]

        return call

    def _finish(self, number: int) -> Callable[[], list[np.ndarray]]:
        exchange, worker = self._collective.exchanges[number], self._collective.worker

        def call() -> list[np.ndarray]:
            with self._guarded():
                with self._span("held up", exchange.what):
                    worker.wait_for(number)
                return self._results(number)

        return call

    def _operation(
        self, call: Callable[..., Any], tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        with function_state.owning_callbacks():
            results = tf.numpy_function(call, tensors, [spec.dtype for spec in outputs], stateful=True)
        results = list(results) if isinstance(results, list | tuple) else [results]
        if not tf.executing_eagerly():
            make_state(tf.compat.v1.get_default_graph()).exchanged.add(results[0].op)
            self._site.add(results)
            for result, spec in zip(results, outputs, strict=True):
                result.set_shape(spec.shape)
        return results

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            _check_open(self._collective)
            self._site.check()
            yield
        except BaseException as error:
            self._site.failed(error)
            raise


def signature(kind: str, name: str, tensor: tf.Tensor) -> str:
    """A plan's line for one tensor."""
    return f"{kind} {name} {tensor.dtype.name} {tensor.shape}"
