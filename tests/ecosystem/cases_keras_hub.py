"""KerasHub: a backbone of which LoRA trains a part, and a classifier."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

from tests.ecosystem.programs import STEPS, assert_law, trained
from tests.multirank.inside import settings
from tests.multirank.oracle import BATCH, Feed

WORDS, LENGTH = 50, 6


def sentences() -> list[Feed]:
    """Return batches of sentences, with their padding masks and classes."""
    random = np.random.RandomState(3)
    return [
        {
            "token_ids": random.randint(0, WORDS, [BATCH, LENGTH]),
            "padding_mask": np.arange(LENGTH) < random.randint(3, LENGTH + 1, [BATCH, 1]),
            "segment_ids": np.zeros([BATCH, LENGTH], "int32"),
            "labels": random.randint(0, 3, BATCH),
        }
        for _ in range(STEPS)
    ]


def fitted(model: Any, names: tuple[str, ...], feeds: list[Feed], labels: Any) -> dict[str, np.ndarray]:
    model.compile(
        keras.optimizers.Adam(0.02, epsilon=1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    together = {n: np.concatenate([feed[n] for feed in feeds]) for n in feeds[0]}
    inputs = {n: together[n] for n in names}
    model.fit(inputs, labels(together), batch_size=len(feeds[0]["labels"]), shuffle=False, verbose=0)
    return trained(model)


def case_lora() -> None:
    """LoRA in a language model; its embedding is not trained."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        backbone = keras_hub.models.GemmaBackbone(
            vocabulary_size=WORDS,
            num_layers=2,
            num_query_heads=2,
            num_key_value_heads=1,
            hidden_dim=8,
            intermediate_dim=16,
            head_dim=4,
        )
        model = keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)
        backbone.enable_lora(rank=2)
        names = {v.path for v in model.trainable_variables}
        assert names and all("lora" in name for name in names), names
        return fitted(model, ("token_ids", "padding_mask"), feeds, lambda all_of_it: all_of_it["token_ids"])

    assert_law(train, set_seed=keras.utils.set_random_seed, feeds=sentences())


def case_a_classifier() -> None:
    """All weights are trained; slices stay unmerged, since Keras 3's Adam squares each duplicate row separately."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=WORDS,
            num_layers=2,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            dropout=0.0,
            max_sequence_length=LENGTH,
        )
        model = keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=None, dropout=0.0)
        return fitted(model, ("token_ids", "padding_mask", "segment_ids"), feeds, lambda all_of_it: all_of_it["labels"])

    with settings(sparse="unmerged"):
        # Attention does not depend on the bias of keys: Adam's steps for it come from rounding only.
        assert_law(train, set_seed=keras.utils.set_random_seed, feeds=sentences(), rounding="key.bias")
