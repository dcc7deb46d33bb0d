"""The law for the programs of packages; in addition, all ranks must end with equal values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.multirank.cases_programs import Train, assert_equal_everywhere, assert_program_law
from tests.multirank.oracle import Feed

STEPS = 5


def assert_law(
    train: Train,
    tolerance: float = 1e-5,
    set_seed: Callable[[int], Any] = tf.random.set_seed,
    feeds: list[Feed] | None = None,
    rounding: str | None = None,
) -> None:
    """Compare ranks that have their own seeds and data with one process. All ranks must be bit-identical.

    Args:
        train: program; returns the trained values by name.
        tolerance: allowed difference, relative to the greatest entry of each array.
        set_seed: function that sets the seed of the initial values.
        feeds: global batches; None: those of ``oracle.data``.
        rounding: pattern of names that only rounding errors change, not compared with one process; None: no names.
    """
    found: dict[str, np.ndarray] = {}

    def kept(batches: list[Feed]) -> dict[str, np.ndarray]:
        found.clear()
        found.update(train(batches))
        return {name: value for name, value in found.items() if not rounding or not re.search(rounding, name)}

    assert_program_law(kept, tolerance, STEPS, set_seed, feeds)
    assert_equal_everywhere(found)


def values(variables: Iterable[Any]) -> dict[str, np.ndarray]:
    """Return values by position and name, without the numbers that make names unique."""
    return {
        f"{place}: {re.sub('_[0-9]+', '', getattr(v, 'path', v.name))}": v.numpy() for place, v in enumerate(variables)
    }


def trained(model: Any) -> dict[str, np.ndarray]:
    """Return the weights of a Keras model and the state of its optimizer."""
    kept = model.optimizer.variables
    return values([*model.trainable_variables, *(kept() if callable(kept) else kept)])
