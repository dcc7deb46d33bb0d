"""GPflow: Gaussian processes trained by Adam, natural gradients and SciPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as tk

import tfdist
from tests.ecosystem.programs import STEPS, assert_law, values
from tests.multirank.cases_programs import assert_equal_everywhere
from tests.multirank.oracle import BATCH, Feed, assert_close, data, mine, one_process
from tests.named import subtest

DATA = data("float64", STEPS)
assert_law = functools.partial(assert_law, feeds=DATA)


def sparse(seed: int | None = None) -> Any:
    """Return a model whose inducing points are drawn at random."""
    random = np.random.RandomState(seed) if seed is not None else np.random
    return gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.ones(5)),
        gpflow.likelihoods.Gaussian(0.5),
        random.randn(6, 5),
        num_latent_gps=3,
        num_data=STEPS * BATCH,
    )


def set_seed(seed: int) -> None:
    tk.utils.set_random_seed(seed)


def batches(feeds: list[Feed]) -> Iterator[Any]:
    """Return the batches as an iterator of a dataset, as GPflow takes them."""
    together = tuple(np.concatenate([feed[n] for feed in feeds]) for n in "xy")
    return iter(tf.data.Dataset.from_tensor_slices(together).batch(len(feeds[0]["x"])))


def case_minibatches_and_adam() -> None:
    """GPflow scales the loss of a batch to all data, so the mean of the ranks' losses is the loss of all batches."""

    def train(feeds: list[Feed], make: Callable[[float], Any]) -> dict[str, np.ndarray]:
        model, optimizer = sparse(), make(0.05)
        loss = model.training_loss_closure(batches(feeds), compile=True)

        @tf.function
        def step() -> None:
            optimizer.minimize(loss, model.trainable_variables)

        if not isinstance(optimizer, tk.optimizers.legacy.Optimizer):
            optimizer.build(model.trainable_variables)
        for _ in feeds:
            step()
        return values(model.trainable_variables)

    for make in (tk.optimizers.Adam, tk.optimizers.legacy.Adam):
        with subtest(make):
            assert_law(functools.partial(train, make=make), set_seed=set_seed)


def case_a_tape_that_clips() -> None:
    def train(feeds: list[Feed], function: bool) -> dict[str, np.ndarray]:
        model, optimizer = sparse(), tk.optimizers.legacy.Adam(0.05)

        def step(batch: Any) -> None:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(model.trainable_variables)
                loss = model.training_loss(batch)
            gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run = tf.function(step) if function else step
        for batch in batches(feeds):
            run(batch)
        return values(model.trainable_variables)

    for function in (True, False):
        with subtest("in a function" if function else "eagerly"):
            assert_law(functools.partial(train, function=function), set_seed=set_seed)


def case_natural_gradients_and_adam() -> None:
    """Natural gradients assign to the variational parameters values that are not linear in the gradients."""

    def train(feeds: list[Feed], function: bool) -> dict[str, np.ndarray]:
        model = sparse()
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
        natural, adam = gpflow.optimizers.NaturalGradient(0.1), tk.optimizers.legacy.Adam(0.02)

        def step(batch: Any) -> None:
            loss = functools.partial(model.training_loss, batch)
            natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
            adam.minimize(loss, model.trainable_variables)

        run = tf.function(step) if function else step
        for batch in batches(feeds):
            run(batch)
        return values(parameter.unconstrained_variable for parameter in model.parameters)

    for function in (True, False):
        with subtest("in a function" if function else "eagerly"):
            assert_law(functools.partial(train, function=function), set_seed=set_seed)


def scipy(model: Any, feed: Feed, mean: Callable[[Any], Any], compiled: bool = True) -> dict[str, np.ndarray]:
    batch = tf.constant(feed["x"]), tf.constant(feed["y"])
    gpflow.optimizers.Scipy().minimize(
        lambda: mean(model.training_loss(batch)), model.trainable_variables, compile=compiled, options={"maxiter": 8}
    )
    return values(model.trainable_variables)


def own(loss: Any) -> Any:
    return loss


def whole_and_share(compiled: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the variables that one process gets from the whole batch, and from a rank's share of the batch."""
    return scipy(sparse(0), DATA[0], own, compiled), scipy(sparse(0), mine(DATA[0]), own, compiled)


def case_scipy_with_the_mean_of_losses() -> None:
    """SciPy reads the variables before the first step, so ranks with different values need ``broadcast_variables``.
    Its line search uses the loss, which needs ``all_reduce``: otherwise each rank uses its own loss."""
    for compiled in (True, False):
        with subtest("compiled" if compiled else "eagerly"):
            expected, alone = one_process(functools.partial(whole_and_share, compiled))
            assert any(np.abs(alone[n] - v).max() > 1e-2 * np.abs(v).max() for n, v in expected.items())
            model = sparse(tfdist.rank())
            tfdist.broadcast_variables(model.trainable_variables)
            found = scipy(model, mine(DATA[0]), tfdist.all_reduce, compiled)
            assert_equal_everywhere(found)
            assert_close(found, expected, 1e-5)


def case_scipy_with_the_same_data() -> None:
    """With the import alone, the ranks do what one process does."""
    expected = one_process(lambda: scipy(sparse(0), DATA[0], own))
    found = scipy(sparse(0), DATA[0], own)
    assert_equal_everywhere(found)
    assert_close(found, expected, 1e-5)


def case_scipy_alone_is_refused() -> None:
    """Ranks that begin with different values and use their own losses would end with different variables."""
    with pytest.raises(tfdist.DisagreementError, match="sets .* to other values on each rank.*broadcast_variables"):
        scipy(sparse(tfdist.rank()), mine(DATA[0]), own)
