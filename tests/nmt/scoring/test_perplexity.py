"""Perplexity of a text, for any number of ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tensorflow as tf

from nmt.model.inference_model import TrainedWeights
from nmt.options.config import Config
from nmt.scoring.perplexity import LikelihoodModel
from tests.nmt.core.thread_ranks import outcomes


def test_ranks_add_up(toy: Any) -> None:
    """The ranks' sums add up, also with more ranks than batches."""
    weights = TrainedWeights(toy.architecture)
    model = LikelihoodModel(weights, toy.src_vocab, toy.tgt_vocab, Config(batch_size=8))
    with model.session.graph.as_default():
        model.session.run(tf.compat.v1.global_variables_initializer())
    loss_sum, words = model.sums(toy.train)
    assert words == int(toy.train.tgt.lengths.sum()) + len(toy.train)
    for size in (2, 3, 7):
        shares = [model.sums(toy.train, rank, size) for rank in range(size)]
        assert sum(loss for loss, _ in shares) == pytest.approx(loss_sum), size
        assert sum(count for _, count in shares) == words, size
    alone = model.perplexity(toy.train)
    assert alone == pytest.approx(math.exp(loss_sum / words))
    assert outcomes(3, lambda ranks: model.perplexity(toy.train, ranks)) == [pytest.approx(alone)] * 3
