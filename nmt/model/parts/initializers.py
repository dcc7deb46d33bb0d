"""Weight initialisation: each variable draws from a seed of its own.

With one seed for all, as TensorFlow gives an initialiser shared by a variable scope, variables of equal shape
start out identical: both directions of an encoder, or all upper layers. Here the seed of a variable is
derived from (seed, variable name), so that neither the order of construction nor another variable changes
what it draws. An initialiser cannot see the name of its variable; a scope's custom getter can: see
`Initializer.getter`. A variable that is cut into partitions starts as the whole one would.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

INIT_OPS = ("uniform", "glorot_normal", "glorot_uniform")


class Draw(NamedTuple):
    """How one variable starts where its layer says so, whatever `init_op`: given to `get_variable` as initializer.

    Attributes:
        distribution: "normal", of mean 0; or "uniform".
        width: the standard deviation; or the draws lie within +-width.
    """

    distribution: str
    width: float


@dataclass(frozen=True)
class Initializer:
    """How the weights of a model start.

    Attributes:
        init_op: "uniform" in [-init_weight, init_weight), "glorot_normal" or "glorot_uniform" (Glorot &
            Bengio 2010).
        init_weight: half the width of "uniform"; unused by the others.
        seed: None draws anew in every session.
        given: values that are not drawn, by the full names of their variables.

    Raises:
        ValueError: unknown init_op, or "uniform" of no width.
    """

    init_op: str = "uniform"
    init_weight: float = 0.1
    seed: int | None = None
    given: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.init_op not in INIT_OPS:
            raise ValueError(
                f"init_op is {self.init_op!r}; it must be one of {', '.join(map(repr, INIT_OPS))}",
            )
        if self.init_op == "uniform" and not self.init_weight > 0:
            raise ValueError(f"init_weight is {self.init_weight}; init_op 'uniform' needs a positive one")

    def for_variable(self, name: str, stated: Draw | None = None) -> Any:
        """The TensorFlow initialiser of the variable with this full name (without the ":0").

        Args:
            name: of the variable.
            stated: what its layer says; None: nothing.
        """
        if name in self.given:
            return _given(self.given[name])
        seed = None if self.seed is None else zlib.crc32(f"{self.seed}/{name}".encode()) & 0x7FFFFFFF
        if stated is None:
            return self.draw(seed)
        if stated.distribution == "normal":
            return tf.compat.v1.random_normal_initializer(0.0, stated.width, seed=seed)
        return tf.compat.v1.random_uniform_initializer(-stated.width, stated.width, seed=seed)

    def draw(self, seed: int | None) -> Any:
        """The TensorFlow initialiser that draws by this operation seed."""
        if self.init_op == "glorot_normal":
            return tf.compat.v1.glorot_normal_initializer(seed=seed)
        if self.init_op == "glorot_uniform":
            return tf.compat.v1.glorot_uniform_initializer(seed=seed)
        return tf.compat.v1.random_uniform_initializer(-self.init_weight, self.init_weight, seed=seed)

    def getter(self, getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        """A `custom_getter` for a variable scope; variables that state an initialiser of TensorFlow's keep it."""
        stated = kwargs.get("initializer")
        if stated is None or isinstance(stated, Draw):
            whole = self.for_variable(name, stated)
            kwargs["initializer"] = _cut(whole) if kwargs.get("partitioner") else whole
        return getter(name, *args, **kwargs)


def _cut(whole: Any) -> Callable[..., tf.Tensor]:
    """The initialiser of partitions, whose values together are those of `whole` for the uncut variable.

    TensorFlow asks the same initialiser for every partition, so that with a seed all would start alike.
    """

    def part(shape: list[int], dtype: tf.DType, partition_info: Any) -> tf.Tensor:
        return tf.slice(whole(partition_info.full_shape, dtype), partition_info.var_offset, shape)

    return part


def _given(values: np.ndarray) -> Callable[..., tf.Tensor]:
    """The initialiser that returns the values, from outside the graph: a graph definition ends at 2 GB."""

    def initial(shape: list[int], dtype: tf.DType) -> tf.Tensor:
        value = tf.numpy_function(lambda: values.astype(dtype.as_numpy_dtype, copy=False), [], dtype)
        return tf.ensure_shape(value, shape)

    return initial


def initializer(init_op: str = "uniform", init_weight: float = 0.1, seed: int | None = None) -> Initializer:
    """The `Initializer` with these settings."""
    return Initializer(init_op, init_weight, seed)
