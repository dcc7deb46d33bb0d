"""The graph's communication operations, chained in one order.

Each is one or several stateful ``tf.numpy_function`` over persistent buffers. The graph is the same on all ranks, so
the exchanges of one collective are chained with control dependencies and need no negotiation; each collective has a
channel of its own, so that two of them may run in any order within a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import buckets
from tfdist.graphs import GraphState, make_state
from tfdist.world import Channel, Op, World

# Neither MPI wheel reduces bfloat16, and float16 is slow and coarse: both are added in float32, rounded once.
_ON_THE_WIRE = {tf.float16: tf.float32, tf.bfloat16: tf.float32}


class Collective:
    """One communication operation of a graph: what all ranks must agree on, and its channel.

    Args:
      name: in words, for messages; unique in its graph.
      plan: a line for each tensor (name, dtype, shape), compared between the ranks.
      world: the ranks.

    Attributes:
      channel: opened when all ranks have been seen to have the same plan.
      overwritten: this rank's values may differ from the other ranks'; told to them with the next step.
      root_only: some rank said so, and this step's result is rank 0's contribution alone.
    """

    def __init__(self, name: str, plan: Sequence[str], world: World) -> None:
        self.name = name
        self.plan = list(plan)
        self.channel: Channel | None = None
        self.overwritten = False
        self.root_only = False
        self.step = 0
        self._world = world

    @property
    def contributes(self) -> bool:
        """Whether this rank's tensors count in this step."""
        return not self.root_only or self._world.rank == 0

    @property
    def divisor(self) -> int:
        """What contributions are divided by in this step, so that their sum is the mean over those that count."""
        return 1 if self.root_only else self._world.size

    def arrive(self, exchange: int, what: str, size_bytes: int = 0) -> Channel:
        """Wait for all ranks at one exchange of this collective."""
        if self.channel is None:
            raise RuntimeError(f"{self.name} was run before the ranks agreed on it; run it with a tf.compat.v1.Session")
        if exchange == 0:
            self.step += 1
        flag = self.channel.arrive(f"{self.name}, step {self.step}, {what}", self.overwritten, size_bytes)
        if exchange == 0:
            self.root_only = flag
            self.overwritten = False
        return self.channel


class Exchanges:
    """Builds the chained graph operations of one collective in the current default graph."""

    def __init__(self, collective: Collective, broadcasts: bool) -> None:
        self._collective = collective
        self._state: GraphState = make_state(tf.compat.v1.get_default_graph())
        self._state.add_collective(collective, broadcasts)
        self._previous: list[tf.Operation] = []

    def add(
        self,
        exchange: Callable[[int, Sequence[np.ndarray]], Sequence[np.ndarray]],
        tensors: Sequence[tf.Tensor],
        shapes: Sequence[Any],
    ) -> list[tf.Tensor]:
        """One exchange after those added before.

        Args:
          exchange: (number of the exchange, arrays) -> arrays of the same dtypes.
          tensors: its arguments.
          shapes: static shapes of the results.
        """
        number = len(self._previous)

        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            with _recorded(self._state):
                return list(exchange(number, arrays))

        # TensorFlow's Python ops have kernels on the host only.
        with tf.control_dependencies(self._previous), tf.device("/device:CPU:0"):
            results = tf.numpy_function(call, tensors, [t.dtype for t in tensors], stateful=True)
        op = results[0].op
        self._state.add_op(op, self._collective)
        self._previous = [*self._previous, op]
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)
        return list(results)


@contextlib.contextmanager
def _recorded(state: GraphState) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        state.failure = error
        raise


class DenseReduction:
    """Exchange of one bucket: copy in, combine over the ranks, hand out views.

    Args:
      collective: whose exchange it is.
      what: in words.
      op: sum, min, max, product; or mean, the sum divided by the number of ranks.
    """

    def __init__(self, collective: Collective, what: str, op: Op | str) -> None:
        self._collective = collective
        self._what = what
        self._op = op
        self._buffers = buckets.Buffers()

    def __call__(self, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Combine arrays of one dtype, each of any shape."""
        whole, parts = self._buffers.take([a.size for a in arrays], arrays[0].dtype)
        channel = self._collective.arrive(number, self._what, whole.nbytes)
        if not self._collective.contributes:
            whole[:] = 0
        else:
            # Dividing while copying saves a pass over the memory after the sum.
            divisor = self._collective.divisor if self._op == "mean" else 1
            for part, array in zip(parts, arrays, strict=True):
                if divisor > 1:
                    np.divide(array.reshape(-1), divisor, out=part)
                else:
                    part[:] = array.reshape(-1)
        channel.all_reduce(whole, "sum" if self._op == "mean" else self._op)  # type: ignore[arg-type]
        return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


class SliceGathering:
    """Exchange of rows: every rank's indices and values, one rank after the other, values divided by the size."""

    def __init__(self, collective: Collective, what: str) -> None:
        self._collective = collective
        self._what = what

    def __call__(self, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Gather (indices [rows], values [rows, …], indices, values, …); the rows of one rank precede the next's."""
        channel = self._collective.arrive(number, self._what)
        if self._collective.contributes:
            divisor = self._collective.divisor
            mine = [np.divide(a, divisor, dtype=a.dtype) if i % 2 else a for i, a in enumerate(arrays)]
        else:
            mine = [a[:0] for a in arrays]
        counts = np.array([a.shape[0] for a in mine], np.int64)
        packed = np.concatenate([np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in [counts, *mine]])
        gathered = channel.all_gather(packed, f"{self._collective.name}, step {self._collective.step}, {self._what}")
        unpacked = [_unpack(part, arrays) for part in gathered]
        return [np.concatenate(parts) for parts in zip(*unpacked, strict=True)]


def _unpack(packed: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    start = 8 * len(like)
    counts = packed[:start].view(np.int64)
    arrays = []
    for count, array in zip(counts, like, strict=True):
        shape = (int(count), *array.shape[1:])
        size_bytes = int(np.prod(shape)) * array.itemsize
        # A copy: rows of other dtypes before it may leave it unaligned.
        arrays.append(np.frombuffer(packed[start : start + size_bytes].tobytes(), array.dtype).reshape(shape))
        start += size_bytes
    return arrays


class Broadcasting:
    """Exchange in which every rank receives rank 0's tensor."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def __call__(self, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Broadcast one array; the shape must be the same on all ranks."""
        received = np.array(arrays[0], copy=True)
        channel = self._collective.arrive(number, "tensor", received.nbytes)
        channel.broadcast(received.reshape(-1))
        return [received]


def to_wire(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in the dtype in which it is added."""
    return tf.cast(tensor, _ON_THE_WIRE.get(tensor.dtype, tensor.dtype))


def signature(kind: str, name: str, tensor: tf.Tensor) -> str:
    """A plan's line for one tensor."""
    return f"{kind} {name} {tensor.dtype.name} {tensor.shape}"
