"""The law for the programs of packages; and that all ranks end with the same."""

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
    """The ranks, with their own seeds and data, against one process; equal to the bit among themselves.

    Args:
      train: a program, which returns what it has trained.
      tolerance: of the greatest entry of each array.
      set_seed: of what draws the initial values.
      feeds: global batches, if they are not to be those of ``oracle.data``.
      rounding: in the names of what nothing but rounding moves, which is not compared with one process.
    """
    found: dict[str, np.ndarray] = {}

    def kept(batches: list[Feed]) -> dict[str, np.ndarray]:
        found.clear()
        found.update(train(batches))
        return {name: value for name, value in found.items() if not rounding or not re.search(rounding, name)}

    assert_program_law(kept, tolerance, STEPS, set_seed, feeds)
    assert_equal_everywhere(found)


def values(variables: Iterable[Any]) -> dict[str, np.ndarray]:
    """What variables hold, by their place and their name without the numbers that make names unique."""
    return {
        f"{place}: {re.sub('_[0-9]+', '', getattr(v, 'path', v.name))}": v.numpy() for place, v in enumerate(variables)
    }


def trained(model: Any) -> dict[str, np.ndarray]:
    """The weights of a Keras model, and what its optimizer remembers."""
    kept = model.optimizer.variables
    return values([*model.trainable_variables, *(kept() if callable(kept) else kept)])
