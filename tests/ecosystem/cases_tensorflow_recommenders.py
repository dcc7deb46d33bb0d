"""TensorFlow Recommenders: tasks that a model of Keras 2 trains in ``train_step``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras as tk

import tfdist
from tests.ecosystem.programs import STEPS, assert_law, trained
from tests.multirank.oracle import Feed, data
from tests.named import subtest

layers = tk.layers


def fitted(model: Any, feeds: list[Feed], optimizer: Any) -> dict[str, np.ndarray]:
    model.compile(optimizer)
    together = {n: np.concatenate([feed[n] for feed in feeds]) for n in feeds[0]}
    model.fit(tf.data.Dataset.from_tensor_slices(together).batch(len(feeds[0]["x"])), verbose=0)
    return trained(model)


class Ranking(tfrs.Model):  # type: ignore[misc]
    """Predicts a rating from an embedding of the category and from features."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.tower = layers.Embedding(7, 4), tk.Sequential([layers.Dense(8, "relu"), layers.Dense(3)])
        self.task = tfrs.tasks.Ranking(tk.losses.MeanSquaredError(), metrics=[tk.metrics.RootMeanSquaredError()])

    def compute_loss(self, inputs: Feed, training: bool = False) -> Any:
        predicted = self.tower(tf.concat([inputs["x"], self.rows(inputs["i"])], 1))
        return self.task(labels=inputs["y"], predictions=predicted)


class Retrieval(tfrs.Model):  # type: ignore[misc]
    """Two towers. The negatives of an answer are the other answers of the rank's own batch, as in any data-parallel
    training. One process with the whole batch must leave out the answers of other ranks' batches."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.candidates = layers.Dense(4, use_bias=False), layers.Embedding(7, 4)
        self.task = tfrs.tasks.Retrieval(tk.losses.CategoricalCrossentropy(from_logits=True), temperature=0.5)

    def compute_loss(self, inputs: Feed, training: bool = False) -> Any:
        queries, candidates = self.queries(inputs["x"]), self.candidates(inputs["i"])
        own = inputs["of_rank"][:, None] == inputs["of_rank"][None, :]
        return self.task(queries, candidates, score_mask=own, compute_metrics=False)


def case_ranking() -> None:
    def train(feeds: list[Feed], make: Callable[[float], Any]) -> dict[str, np.ndarray]:
        return fitted(Ranking(), feeds, make(0.1))

    for make in (tk.optimizers.Adagrad, tk.optimizers.legacy.Adam):
        with subtest(make):
            assert_law(functools.partial(train, make=make), set_seed=tk.utils.set_random_seed)


def case_retrieval() -> None:
    """Each batch's loss is a mean over its answers. Without a loss, TensorFlow Recommenders takes the sum, which then
    becomes the mean of the ranks' sums."""
    feeds = [{**feed, "of_rank": np.arange(len(feed["x"])) % tfdist.size()} for feed in data(steps=STEPS)]
    assert_law(
        lambda feeds: fitted(Retrieval(), feeds, tk.optimizers.legacy.Adagrad(0.1)),
        set_seed=tk.utils.set_random_seed,
        feeds=feeds,
    )
