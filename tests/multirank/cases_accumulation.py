"""Accumulation: k steps on N ranks with batch B each are one step of one process with batch k N B."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import Model, Train, refusal
from tests.multirank.inside import settings
from tests.multirank.oracle import Feed, assert_close, data, merged, mine, model, one_process, train, v1
from tests.named import turn

STEPS = 3


@contextlib.contextmanager
def accumulating(steps: int = STEPS, **others: Any) -> Iterator[None]:
    with settings():
        tfdist.configure(accumulate_steps=steps, **others)
        yield


def pieces(feeds: list[Feed], steps: int = STEPS) -> list[Feed]:
    """Each batch as so many smaller ones, of this rank's rows."""
    return [{n: v[k::steps] for n, v in mine(feed).items()} for feed in feeds for k in range(steps)]


def assert_steps_are_one(
    run: Callable[[list[Feed]], dict[str, np.ndarray]], steps: int = STEPS, tolerance: float = 1e-5, updates: int = 4
) -> None:
    """What one process does with each batch, the ranks do in so many steps; and other updates would make a difference.

    Args:
      run: trains with these batches and returns the variables.
      steps: in which an update is made.
      tolerance: of the greatest entry.
      updates: how many.
    """
    feeds = data(steps=updates)
    expected, each = one_process(lambda: (run(feeds), run([{n: v[:6] for n, v in f.items()} for f in feeds])))
    assert any(np.abs(each[n] - v).max() > 100 * tolerance * np.abs(v).max() for n, v in expected.items())
    assert_close(run(pieces(feeds, steps)), expected, tolerance)


def session(build: Callable[[], Any]) -> Callable[[list[Feed]], dict[str, np.ndarray]]:
    return functools.partial(train, build)


def clipped(make: Callable[[], Any], **options: Any) -> Any:
    """A clipped step, a global step, and averages of the variables after it."""
    loss, variables = model(**options)
    gradients, _ = tf.clip_by_global_norm([merged(g) for g in tf.gradients(loss, variables)], 0.3)
    step = make().apply_gradients(
        zip(gradients, variables, strict=True), global_step=v1.train.get_or_create_global_step(), name="train"
    )
    return step


SESSION_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05, epsilon=1e-3),
}


def case_sessions() -> None:
    with accumulating():
        for name, make in SESSION_OPTIMIZERS.items():
            with turn(name):
                assert_steps_are_one(session(functools.partial(clipped, make)))
        assert_steps_are_one(session(functools.partial(clipped, SESSION_OPTIMIZERS["adam"], use_resource=False)))
