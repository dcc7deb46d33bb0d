"""Recurrent cell: one step of one layer, for any kind of cell.

One part of a cell's input is known for all times before the loop: the embedded words, or the outputs of the layer
below. The other part is computed in the loop: the attention vector, or the layer below in a decoder step. A cell
multiplies its input with one or more kernels. `project` computes the known part's products for all times at once. Only
the other part is multiplied in the loop, and its kernel's gradients are computed after it (see
`nmt.model.lstm.deferred_gradients`).
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
    """State of one layer between two steps, for a cell without a memory cell c.

    Attributes:
        h: the output, [batch, num_units].
    """

    h: tf.Tensor


CellState = LSTMState | GRUState

# Multiplies the part inside the loop, [batch, fed_size] (None if fed_size is 0), with a kernel. Returns the whole
# product [batch, width], with the part known ahead and the bias.
Multiply = Callable[[tf.Tensor | None], tf.Tensor]


class Product:
    """Product x W + b, where x = [part known ahead of the loop; part fed inside the loop].

    Creates `kernel` [ahead_size + fed_size, width], and `bias` [width] if there is a bias, in the current variable
    scope.

    Args:
        ahead_size: width of the part known ahead; may be 0.
        fed_size: width of the part fed inside the loop; may be 0.
        width: width of the product.
        bias: initial value of b; None for no b.
        name: name of the kernel's variable.
        lift: constant added to b, [width]; None for none.

    Attributes:
        fed_size: width of the part fed inside the loop.
        ahead: kernel of the part known ahead, [ahead_size, width].
        inside: kernel of the part fed inside the loop, [fed_size, width].
        bias: b with its lift, [width]; None without a bias.
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
        # The gradient of one split is one concatenation; the gradients of two slices would pad each to the full size.
        self.ahead, self.inside = tf.split(kernel, [ahead_size, fed_size])
        self._for_search = loop_kernel.for_search(self.inside)
        self.bias: tf.Tensor | None = None
        if bias is not None:
            start = tf.compat.v1.constant_initializer(bias)
            self.bias = tf.identity(tf.compat.v1.get_variable("bias", [width], initializer=start))
            if lift is not None:
                self.bias += tf.constant(lift, self.bias.dtype)

    @property
    def dtype(self) -> tf.DType:
        """dtype of kernel and bias."""
        return self.inside.dtype

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the product of the part known ahead, with the bias: [..., ahead_size] -> [..., width].

        With ahead_size 0 only the leading dimensions of the inputs are used.
        """
        # oneDNN's fused product aborts the process on matrices of no width.
        if self._ahead_size:
            rows = tf.matmul(tf.reshape(inputs, [-1, self._ahead_size]), self.ahead)
        else:
            rows = tf.zeros(tf.stack([tf.reduce_prod(tf.shape(inputs)[:-1]), self._width]), self.dtype)
        if self.bias is not None:  # the gradient of `+` sums seven times slower
            rows = tf.nn.bias_add(rows, self.bias)
        projected = tf.reshape(rows, tf.concat([tf.shape(inputs)[:-1], [self._width]], 0))
        projected.set_shape(inputs.shape[:-1].concatenate([self._width]))
        return projected

    def step(self, projected: tf.Tensor, fed: tf.Tensor | None) -> tf.Tensor:
        """Return the whole product from `projected` and the other part `fed` [batch, fed_size], for search."""
        return projected if fed is None else projected + tf.matmul(fed, self._for_search)

    def in_loop(self) -> LoopKernel:
        """Return the kernel of the part inside the loop, for one loop."""
        return LoopKernel(self.inside)


class Cell(ABC):
    """The variables of one layer, and its step.

    Args:
        num_units: width of each part of the state.
        products: products of the cell, in the order that `_advance` takes them.
        device: name of the device of its variables and operations.

    Attributes:
        num_units: width of each part of the state.
        device: name of the device of its variables and operations.
        gates: the product of a plain LSTM, which cuDNN computes, too; None for other cells.
    """

    state_type: ClassVar[type[Any]] = LSTMState
    gates: Product | None = None

    def __init__(self, num_units: int, products: Sequence[Product], device: str) -> None:
        self.num_units = num_units
        self.device = device
        self._products = products

    def zero_state(self, batch: tf.Tensor) -> CellState:
        """Return the initial state of zeros, for `batch` sentences."""
        zeros = tf.zeros(tf.stack([batch, self.num_units]), self._products[0].dtype)
        zeros.set_shape([None, self.num_units])
        state: CellState = self.state_type(*(zeros for _ in self.state_type._fields))
        return state

    def project(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Return each product of the part known ahead: [..., ahead_size] -> [..., width].

        A cell with ahead_size 0 takes an input of width 0.
        """
        with tf.device(self.device):
            return [product.project(inputs) for product in self._products]

    def step(self, projected: Sequence[tf.Tensor], inside: tf.Tensor | None, state: CellState) -> CellState:
        """Run one step and return the new state, whose part h is the output.

        Args:
            projected: results of `project`, [batch, width] each.
            inside: the other part of the input, [batch, inside_size]; None if inside_size is 0.
            state: state of the previous step.
        """

        def multiply(number: int) -> Multiply:
            return lambda fed: self._products[number].step(projected[number], fed)

        with tf.device(self.device):
            return self._advance([multiply(number) for number in range(len(self._products))], inside, state)

    def in_loop(self, projected: Sequence[tf.Tensor]) -> CellInLoop:
        """Return this cell for use in one loop, with `projected` of all times, [time, batch, width] each."""
        with tf.device(self.device):
            return CellInLoop(self._products, self._advance, projected, self.device)

    @abstractmethod
    def _advance(self, products: Sequence[Multiply], inside: tf.Tensor | None, state: Any) -> CellState:
        """Return the state after one step, by the formula of this kind of cell."""


class CellInLoop:
    """A `Cell` in one loop; the gradients of its kernels are computed after the loop.

    Attributes:
        projected: inputs of the loop, [time, batch, width] for each product.
        fed_sizes: widths of the factors that the loop has to write for `close`.
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
        # None for a product that is known ahead completely.
        self._kernels = [product.in_loop() if product.fed_size else None for product in products]
        self.projected = [
            part if kernel is None else kernel.carry(part)
            for kernel, part in zip(self._kernels, projected, strict=True)
        ]
        self.fed_sizes = [product.fed_size for product in products if product.fed_size]

    def step(
        self, projected: Sequence[tf.Tensor], inside: tf.Tensor | None, state: CellState
    ) -> tuple[CellState, list[tf.Tensor]]:
        """Run one step as `Cell.step`, and also return the factors [batch, fed_size] that `close` needs."""
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
        """Take the factors of all times, [time, batch, fed_size] each, after the loop."""
        kernels = [kernel for kernel in self._kernels if kernel is not None]
        for kernel, values in zip(kernels, fed, strict=True):
            kernel.fed(values)


def join(inside: tf.Tensor | None, h: tf.Tensor) -> tf.Tensor:
    """Return [inside; h], or h if the whole input is known ahead (`inside` is None)."""
    return h if inside is None else tf.concat([inside, h], 1)
