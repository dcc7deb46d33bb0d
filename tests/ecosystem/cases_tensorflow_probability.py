"""TensorFlow Probability: layers of variational inference in ``fit``, and distributions fitted by its own loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras as tk

from tests.ecosystem.programs import STEPS, assert_law, trained, values
from tests.multirank.oracle import Feed
from tests.named import subtest

tfd, tfb, tfpl = tfp.distributions, tfp.bijectors, tfp.layers


def together(feeds: list[Feed]) -> Feed:
    return {n: np.concatenate([feed[n] for feed in feeds]) for n in feeds[0]}


def case_fit_of_a_distribution_that_a_network_gives() -> None:
    """``DistributionLambda``, and the likelihood as the loss."""

    def train(feeds: list[Feed], make: Callable[[float], Any]) -> dict[str, np.ndarray]:
        model = tk.Sequential(
            [
                tk.layers.Input([5]),
                tk.layers.Dense(tfpl.IndependentNormal.params_size(3)),
                tfpl.IndependentNormal(3),
            ]
        )
        model.compile(make(0.05), lambda y, predicted: -predicted.log_prob(y))
        all_of_it = together(feeds)
        model.fit(all_of_it["x"], all_of_it["y"], batch_size=len(feeds[0]["x"]), shuffle=False, verbose=0)
        return trained(model)

    for make in (tk.optimizers.Adam, tk.optimizers.legacy.Adam):
        with subtest(make):
            assert_law(functools.partial(train, make=make), set_seed=tk.utils.set_random_seed)


def case_variational_layers() -> None:
    """Weights are drawn once per batch, so each sample of a batch sees the same weights. With one seed, all ranks draw
    the weights of one process. (``DenseFlipout`` draws a sign for each sample, which differs by rank.)"""

    def train(feeds: list[Feed], kind: Any) -> dict[str, np.ndarray]:
        def divergence(posterior: Any, prior: Any, _: Any) -> Any:
            return tfd.kl_divergence(posterior, prior) / 100

        model = tk.Sequential(
            [
                tk.layers.Input([5]),
                kind(4, activation="tanh", kernel_divergence_fn=divergence),
                kind(3, kernel_divergence_fn=divergence),
            ]
        )
        model.compile(tk.optimizers.legacy.Adam(0.05), "mse")
        all_of_it = together(feeds)
        model.fit(all_of_it["x"], all_of_it["y"], batch_size=len(feeds[0]["x"]), shuffle=False, verbose=0)
        return trained(model)

    # Initial values must differ by rank and drawn weights must not: the operation's seed and the global seed see to it.
    assert_law(
        lambda feeds: train(feeds, tfpl.DenseReparameterization), set_seed=lambda seed: tk.utils.set_random_seed(3)
    )


def case_minimize() -> None:
    """``tfp.math.minimize``, a loop of steps in one function: the loss closes over a batch."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        where = tf.Variable(tf.random.normal([3]), name="where")
        scale = tfp.util.TransformedVariable(tf.exp(tf.random.normal([3])), tfb.Softplus(), name="scale")
        batch = tf.constant(feeds[0]["y"])

        def loss() -> Any:
            return -tf.reduce_mean(tfd.MultivariateNormalDiag(where, scale).log_prob(batch))

        tfp.math.minimize(
            loss, STEPS, tk.optimizers.legacy.Adam(0.05), trainable_variables=(where, *scale.trainable_variables)
        )
        return values([where, *scale.trainable_variables])

    assert_law(train)


def case_a_tape_of_variables_that_are_transformed() -> None:
    """A step in a function, and one that clips."""

    def train(feeds: list[Feed], function: bool) -> dict[str, np.ndarray]:
        where = tf.Variable(tf.random.normal([3]), name="where")
        scale = tfp.util.TransformedVariable(
            tf.linalg.diag(tf.exp(tf.random.normal([3]))), tfb.FillScaleTriL(), name="scale"
        )
        mixture = tfd.MultivariateNormalTriL(where, scale)
        optimizer = tk.optimizers.Adam(0.05)
        optimizer.build(mixture.trainable_variables)

        def step(batch: Any) -> None:
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(mixture.log_prob(batch))
            gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, mixture.trainable_variables), 0.5)
            optimizer.apply_gradients(zip(gradients, mixture.trainable_variables, strict=True))

        run = tf.function(step) if function else step
        for feed in feeds:
            run(tf.constant(feed["y"]))
        return values(mixture.trainable_variables)

    for function in (True, False):
        with subtest("in a function" if function else "eagerly"):
            assert_law(functools.partial(train, function=function))


def case_variational_inference() -> None:
    """``tfp.vi.fit_surrogate_posterior``: all ranks draw the same samples of the weights, by one seed."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        surrogate = tfd.Independent(
            tfd.Normal(
                tf.Variable(tf.random.normal([5]), name="where"),
                tfp.util.TransformedVariable(tf.ones([5]), tfb.Softplus(), name="scale"),
            ),
            1,
        )
        x, y = tf.constant(feeds[0]["x"]), tf.constant(feeds[0]["y"][:, 0])

        def joint(w: Any) -> Any:
            likelihood = tfd.Normal(tf.linalg.matvec(x[None], w), 1.0).log_prob(y)
            return tf.reduce_mean(likelihood, -1) + tf.reduce_sum(tfd.Normal(0.0, 1.0).log_prob(w), -1) / 100

        tfp.vi.fit_surrogate_posterior(
            joint, surrogate, tk.optimizers.legacy.Adam(0.05), num_steps=STEPS, sample_size=4, seed=(1, 2)
        )
        return values(surrogate.trainable_variables)

    assert_law(train)
