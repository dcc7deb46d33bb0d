"""A recurrent cell: one step of one layer, for any kind of cell.

A cell's input has a part that is known for all times before the loop starts (the embedded words, or the layer
below) and a part that the loop itself produces (the attention vector, or the layer below inside a decoder
step). A cell multiplies with one or more kernels. The products with what is known are formed for all times at
once by `project`; only the rest is multiplied inside the loop, and the gradients of that are formed after it
(see `nmt.model.lstm.deferred_gradients`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from nmt.model.lstm import loop_kernel
from nmt.model.lstm.loop_kernel import LoopKernel


class LSTMState(NamedTuple):
    """State of one layer between two steps.

    Attributes:
        c: the memory cell, [batch, num_units].
        h: the output, [batch, num_units].
    """

    c: tf.Tensor
    h: tf.Tensor


class GRUState(NamedTuple):
    """State of one layer between two steps, for a cell without a memory of its own.

    Attributes:
        h: the output, [batch, num_units].
    """

    h: tf.Tensor


CellState = LSTMState | GRUState

# What a step multiplies with a kernel, [batch, fed_size] (None if fed_size is 0) -> the product [batch, width],
# with the part known ahead and the bias.
Multiply = Callable[[tf.Tensor | None], tf.Tensor]


class Product:
    """x W + b, for an x = [known ahead; fed inside a loop].

    Creates `kernel` [ahead_size + fed_size, width], and `bias` [width] if it has one, in the current variable
    scope.

    Args:
        ahead_size: width of the part known ahead; may be 0.
        fed_size: width of the part known inside the loop; may be 0.
        width: of the product.
        bias: the value that b starts from; None for no b.
        name: of the kernel.
        lift: [width], added to b.

    Attributes:
        fed_size: as given.
    """

    def __init__(
        self,
        ahead_size: int,
        fed_size: int,
        width: int,
        bias: float | None = None,
        name: str = "kernel",
        lift: np.ndarray | None = None,
    ) -> None:
        self.fed_size = fed_size
        self._ahead_size = ahead_size
        self._width = width
        kernel = tf.compat.v1.get_variable(name, [ahead_size + fed_size, width])
        # One split, whose gradient is one concatenation; two slices would each pad to the full size.
        self._ahead, self._inside = tf.split(kernel, [ahead_size, fed_size])
        self._for_search = loop_kernel.for_search(self._inside)
        self._bias: tf.Tensor | None = None
        if bias is not None:
            start = tf.compat.v1.constant_initializer(bias)
            self._bias = tf.identity(tf.compat.v1.get_variable("bias", [width], initializer=start))
            if lift is not None:
                self._bias += tf.constant(lift, self._bias.dtype)

    @property
    def dtype(self) -> tf.DType:
        """Of kernel and bias."""
        return self._inside.dtype

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """The part known ahead: [..., ahead_size] -> [..., width], bias included.

        With ahead_size 0 only the leading dimensions of the inputs count.
        """
        # oneDNN's fused product aborts the process on matrices of no width.
        if self._ahead_size:
            rows = tf.matmul(tf.reshape(inputs, [-1, self._ahead_size]), self._ahead)
        else:
            rows = tf.zeros(tf.stack([tf.reduce_prod(tf.shape(inputs)[:-1]), self._width]), self.dtype)
        if self._bias is not None:  # `+` is as fast, but its gradient sums seven times slower
            rows = tf.nn.bias_add(rows, self._bias)
        projected = tf.reshape(rows, tf.concat([tf.shape(inputs)[:-1], [self._width]], 0))
        projected.set_shape(inputs.shape[:-1].concatenate([self._width]))
        return projected

    def step(self, projected: tf.Tensor, fed: tf.Tensor | None) -> tf.Tensor:
        """The whole product, from its part known ahead and [batch, fed_size], for search."""
        return projected if fed is None else projected + tf.matmul(fed, self._for_search)

    def in_loop(self) -> LoopKernel:
        """What one loop multiplies with."""
        return LoopKernel(self._inside)


class Cell(ABC):
    """The variables of one layer, and its step.

    Args:
        num_units: width of each part of the state.
        products: what the cell multiplies, in the order in which `_advance` takes them.
        device: where its variables and operations are.

    Attributes:
        num_units: as given.
        device: as given.
    """

    state_type: ClassVar[type[Any]] = LSTMState

    def __init__(self, num_units: int, products: Sequence[Product], device: str) -> None:
        self.num_units = num_units
        self.device = device
        self._products = products

    def zero_state(self, batch: tf.Tensor) -> CellState:
        """The state before anything was read, for `batch` sentences."""
        zeros = tf.zeros(tf.stack([batch, self.num_units]), self._products[0].dtype)
        zeros.set_shape([None, self.num_units])
        state: CellState = self.state_type(*(zeros for _ in self.state_type._fields))
        return state

    def project(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """The parts of all products known ahead: [..., ahead_size] -> [..., width] each.

        A cell that knows nothing ahead takes an input of no width.
        """
        with tf.device(self.device):
            return [product.project(inputs) for product in self._products]

    def step(self, projected: Sequence[tf.Tensor], inside: tf.Tensor | None, state: CellState) -> CellState:
        """One step.

        Args:
            projected: [batch, width] each, from `project`.
            inside: [batch, inside_size]; None if inside_size is 0.
            state: of the step before.

        Returns:
            the new state, whose h is the output.
        """

        def multiply(number: int) -> Multiply:
            return lambda fed: self._products[number].step(projected[number], fed)

        with tf.device(self.device):
            return self._advance([multiply(number) for number in range(len(self._products))], inside, state)

    def in_loop(self, projected: Sequence[tf.Tensor]) -> CellInLoop:
        """The same for all times of one loop, with `projected` [time, batch, width] each."""
        with tf.device(self.device):
            return CellInLoop(self._products, self._advance, projected, self.device)

    @abstractmethod
    def _advance(self, products: Sequence[Multiply], inside: tf.Tensor | None, state: Any) -> CellState:
        """The kind's formula: the state after one step."""


class CellInLoop:
    """A `Cell` in one loop, the gradients of its kernels formed after the loop.

    Attributes:
        projected: what the loop has to read, [time, batch, width] for each product.
        fed_sizes: the widths of what the loop has to write.
    """

    def __init__(
        self,
        products: Sequence[Product],
        advance: Callable[[Sequence[Multiply], tf.Tensor | None, Any], CellState],
        projected: Sequence[tf.Tensor],
        device: str,
    ) -> None:
        self._advance = advance
        self._device = device
        # None for a product that is known ahead altogether.
        self._kernels = [product.in_loop() if product.fed_size else None for product in products]
        self.projected = [
            part if kernel is None else kernel.carry(part)
            for kernel, part in zip(self._kernels, projected, strict=True)
        ]
        self.fed_sizes = [product.fed_size for product in products if product.fed_size]

    def step(
        self, projected: Sequence[tf.Tensor], inside: tf.Tensor | None, state: CellState
    ) -> tuple[CellState, list[tf.Tensor]]:
        """As `Cell.step`; the second result, [batch, fed_size] each, of all times goes to `close` after the
        loop."""
        fed: dict[int, tf.Tensor] = {}

        def multiply(number: int) -> Multiply:
            def product(values: tf.Tensor | None) -> tf.Tensor:
                kernel = self._kernels[number]
                if kernel is None:
                    return projected[number]
                fed[number] = values
                return projected[number] + kernel.times(values)

            return product

        with tf.device(self._device):
            after = self._advance([multiply(number) for number in range(len(projected))], inside, state)
        return after, [fed[number] for number in sorted(fed)]

    def close(self, fed: Sequence[tf.Tensor]) -> None:
        """Take [time, batch, fed_size] each."""
        kernels = [kernel for kernel in self._kernels if kernel is not None]
        for kernel, values in zip(kernels, fed, strict=True):
            kernel.fed(values)


def join(inside: tf.Tensor | None, h: tf.Tensor) -> tf.Tensor:
    """[inside; h], for a cell whose input may be known ahead altogether."""
    return h if inside is None else tf.concat([inside, h], 1)
