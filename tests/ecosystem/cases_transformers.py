"""Transformers: its Keras 2 models, its optimizer, and its gradient accumulator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as tk
import transformers

import tfdist
from tests.ecosystem.programs import STEPS, assert_law, trained, values
from tests.multirank.inside import settings
from tests.multirank.oracle import BATCH, Feed
from tests.named import subtest

WORDS, LENGTH = 50, 6


def sentences() -> list[Feed]:
    """Return batches of random sentences with their classes."""
    random = np.random.RandomState(3)
    return [
        {
            "input_ids": random.randint(0, WORDS, [BATCH, LENGTH]),
            "attention_mask": (np.arange(LENGTH) < random.randint(3, LENGTH + 1, [BATCH, 1])).astype("int32"),
            "labels": random.randint(0, 3, BATCH),
        }
        for _ in range(STEPS)
    ]


def bert() -> Any:
    """Return a tiny, random classifier without dropout, because dropout masks differ between ranks."""
    return transformers.TFBertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=LENGTH,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.5,
        ),
        name="classifier",
    )


def gpt() -> Any:
    """Return a tiny language model."""
    return transformers.TFGPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_positions=LENGTH,
            n_embd=8,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=0.3,
        )
    )


def created(**options: Any) -> Any:
    """Return the optimizer of ``create_optimizer``: Adam with warm-up, decay, and weight decay if requested."""
    return transformers.create_optimizer(0.01, num_train_steps=20, num_warmup_steps=2, adam_epsilon=1e-3, **options)[0]


def law(train: Callable[[list[Feed]], dict[str, np.ndarray]]) -> None:
    """Check the law except for key biases: attention does not depend on them, so Adam's steps are rounding errors."""
    assert_law(train, set_seed=tk.utils.set_random_seed, feeds=sentences(), rounding="key.bias")


def case_fit_with_its_own_loss() -> None:
    def train(feeds: list[Feed], options: dict[str, float]) -> dict[str, np.ndarray]:
        model = bert()
        model.compile(created(**options))
        together = {n: np.concatenate([feed[n] for feed in feeds]) for n in feeds[0]}
        model.fit(tf.data.Dataset.from_tensor_slices(together).batch(len(feeds[0]["labels"])), verbose=0)
        return trained(model)

    for options in ({}, {"weight_decay_rate": 0.1}):
        with subtest(options):
            law(functools.partial(train, options=options))
    with subtest("clipping"), settings():
        # One process clips by the norm of unmerged rows: a word that occurs twice in a batch counts twice.
        # A position counts once, because its row is looked up once for the whole batch.
        tfdist.configure(
            sparse_ways={
                "classifier/bert/embeddings/word_embeddings/weight": "unmerged",
                "classifier/bert/embeddings/token_type_embeddings/embeddings": "unmerged",
            }
        )
        law(functools.partial(train, options={"adam_global_clipnorm": 0.5}))


def case_a_language_model_in_a_loop_that_clips() -> None:
    def train(feeds: list[Feed], function: bool) -> dict[str, np.ndarray]:
        model, optimizer = gpt(), created(weight_decay_rate=0.01)

        def step(words: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(input_ids=words, labels=words, training=True).loss)
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run = tf.function(step) if function else step
        for feed in feeds:
            run(tf.constant(feed["input_ids"]))
        return values(model.trainable_variables)

    for function in (True, False):
        with subtest("in a function" if function else "eagerly"):
            law(functools.partial(train, function=function))


def case_gradient_accumulator() -> None:
    """Each step accumulates two backward passes and applies their sum."""

    def train(feeds: list[Feed], functions: bool) -> dict[str, np.ndarray]:
        model, optimizer, accumulator = bert(), created(weight_decay_rate=0.1), transformers.GradientAccumulator()

        def accumulate(feed: Feed) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(feed, training=True).loss) / 2
            accumulator([tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)])

        def apply() -> None:
            optimizer.apply_gradients(zip(accumulator.gradients, model.trainable_variables, strict=True))
            accumulator.reset()

        model({n: v[:1] for n, v in feeds[0].items()})
        accumulator([tf.zeros_like(v) for v in model.trainable_variables])
        accumulator.reset()
        passed, applied = (tf.function(accumulate), tf.function(apply)) if functions else (accumulate, apply)
        for number, feed in enumerate(feeds):
            passed({n: tf.constant(v) for n, v in feed.items()})
            if number % 2:
                applied()
        return values(model.trainable_variables)

    for functions in (True, False):
        with subtest("in functions" if functions else "eagerly"):
            law(functools.partial(train, functions=functions))
