"""A user's exchange in the graph: it takes this module and one line, ``extend.use_exchange``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.cases_law import OPTIMIZERS, clipped_model
from tests.multirank.inside import job, settings
from tests.multirank.oracle import assert_law, v1
from tfdist import extend
from tfdist.engine.arrival import Arrival
from tfdist.engine.collective import Collective
from tfdist.graph.fusing import bucket_of
from tfdist.graph.graph_exchange import RESULTS
from tfdist.graph.graph_state import make_state
from tfdist.graph.op_builder import Builder, Part


class Gathered(extend.GraphExchange):
    """Every rank gathers the tensors of all ranks and adds them, with operations in the graph."""

    name = "gathering"
    built: ClassVar[list[str]] = []

    def takes(self, bucket: extend.Bucket, group: Any) -> bool:
        return bucket.sizes is not None and bucket.dtype == np.float32

    def build(self, tensor: Any, bucket: extend.Bucket, group: Any, key: Any) -> Any:
        self.built.append(bucket.what)
        return tf.reduce_sum(tfdist.all_gather(tensor[None]), 0)


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Use the exchange while the context is open, and check that it was used."""
    Gathered.built.clear()
    extend.use_exchange(Gathered())
    try:
        yield
    finally:
        extend.use_exchange(None)
        assert bool(Gathered.built) == (tfdist.size() > 1)


def case_the_law_in_a_session() -> None:
    with used():
        assert_law(functools.partial(clipped_model, OPTIMIZERS["momentum"]))


def case_several_buckets_in_a_session() -> None:
    with used():
        with settings(bucket_mb=1e-5):
            assert_law(functools.partial(clipped_model, OPTIMIZERS["adam"]))
        assert len(Gathered.built) > 1 or tfdist.size() == 1


def case_a_function_and_an_eager_step() -> None:
    every = [np.arange(4, dtype=np.float32) * (rank + 1) for rank in range(tfdist.size())]

    def step(w: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * every[tfdist.rank()])
        w.assign_sub(tape.gradient(loss, w))

    with used():
        for name, run in (("function", tf.function(step)), ("eager", step)):
            w = tf.Variable(np.zeros(4, np.float32))
            for _ in range(3):
                run(w)
            np.testing.assert_allclose(-w.numpy(), 3 * np.mean(every, axis=0), rtol=1e-6, err_msg=name)


def case_what_one_rank_has_set_is_taken_from_rank_0() -> None:
    """Settings that ranks pass on with a step also reach operations that this exchange builds."""
    with used(), tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w * (tfdist.rank() + 1.0)))
        session.run(v1.global_variables_initializer())
        session.run(step)
        w.load(np.full(3, 10.0 if tfdist.rank() == 0 else 20.0, np.float32), session)
        for _ in range(2):  # passed on with the first step, and taken from rank 0 before the second
            session.run(step)
        found = session.run(w)
    assert all(np.array_equal(found, other) for other in tfdist.all_gather(found[None]))


def case_what_it_builds_is_exchanged() -> None:
    """A search in the graph for a rank's own values stops at this exchange's result, as at an engine's."""
    with tf.Graph().as_default() as graph:
        own = tf.constant([tfdist.rank() + 1.0])
        exchange = Arrival(bucket_of("own", "mean", [own]), ["own"], "nobody")
        collective = Collective("a part that is built", [exchange], job().world, job().recorder)
        part = Part(exchange, (), RESULTS, [own], lambda *_: [own * 2, own * 3])
        (results,) = Builder(collective, [part], job()).build()
        assert {result.op for result in results} <= make_state(graph).exchanged


def case_join_is_refused_before_anybody_is_told() -> None:
    if tfdist.size() == 1:
        return
    with used(), tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w * (tfdist.rank() + 1.0)))
        session.run(v1.global_variables_initializer())
        session.run(step)
        with pytest.raises(RuntimeError, match="combined by gathering, and tfdist.join: .* leave join out"):
            tfdist.join()
        session.run(step)
