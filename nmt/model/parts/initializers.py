"""Weight initialization: the initial values of each variable are drawn with the variable's own seed.

With one seed for all variables, those of equal shape would start with equal values: both directions of an encoder, or
all upper layers. That happens if a variable scope has one TensorFlow initializer. Here a variable's seed is derived
from (seed, variable name). Its values depend neither on the order of construction nor on other variables. An
initializer does not get the name of its variable, but a scope's custom getter does: see `Initializer.getter`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class InitialDistribution(NamedTuple):
    """Initial distribution that a layer sets for a variable in place of `init_op`, as the `initializer` argument.

    Attributes:
        distribution: "normal", with mean 0; or "uniform".
        width: "normal": the standard deviation; "uniform": the range is from -width to width.
    """

    distribution: str
    width: float


@dataclass(frozen=True)
class Initializer:
    """Settings of the initial weights of a model.

    Attributes:
        init_op: "uniform" in [-init_weight, init_weight), "glorot_normal" or "glorot_uniform" (Glorot & Bengio 2010).
        init_weight: bound of "uniform"; unused by the others.
        seed: seed of all variables; None for different values in every session.
        given: initial values that are not drawn, by the full names of their variables.
    """

    init_op: str = "uniform"
    init_weight: float = 0.1
    seed: int | None = None
    given: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def for_variable(self, name: str, stated: InitialDistribution | None = None) -> Any:
        """Return the TensorFlow initializer of a variable.

        Args:
            name: full name of the variable, without ":0".
            stated: initial distribution that its layer sets; None for `init_op`.
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
        """Return the TensorFlow initializer of `init_op` with this operation seed."""
        if self.init_op == "glorot_normal":
            return tf.compat.v1.glorot_normal_initializer(seed=seed)
        if self.init_op == "glorot_uniform":
            return tf.compat.v1.glorot_uniform_initializer(seed=seed)
        return tf.compat.v1.random_uniform_initializer(-self.init_weight, self.init_weight, seed=seed)

    def getter(self, getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        """Create a variable: the `custom_getter` of a variable scope. A given TensorFlow initializer is kept."""
        stated = kwargs.get("initializer")
        if stated is None or isinstance(stated, InitialDistribution):
            kwargs["initializer"] = self.for_variable(name, stated)
        return getter(name, *args, **kwargs)


def _given(values: np.ndarray) -> Callable[..., tf.Tensor]:
    """Return an initializer with these values. They stay outside the graph definition, which has at most 2 GB."""

    def initial(shape: list[int], dtype: tf.DType) -> tf.Tensor:
        value = tf.numpy_function(lambda: values.astype(dtype.as_numpy_dtype, copy=False), [], dtype)
        return tf.ensure_shape(value, shape)

    return initial


def initializer(init_op: str = "uniform", init_weight: float = 0.1, seed: int | None = None) -> Initializer:
    """Return the `Initializer` with these settings."""
    return Initializer(init_op, init_weight, seed)
