"""Ways to run a session: monitored, with a Scaffold and hooks, restored on rank 0 alone, through callables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import tfdist
from tests.multirank.cases_programs import assert_program_law
from tests.multirank.oracle import BATCH, Feed, merged, model, v1

STEPS = 5
Run = Callable[[Any, Any, list[Feed], bool], dict[str, np.ndarray]]


def law(run: Run) -> None:
    """Check clipped steps in a session that ``run`` makes. Its last argument is True on rank 0, and in the one process
    with the whole batch."""
    seeds: list[int] = []

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        with tf.Graph().as_default():
            v1.set_random_seed(seeds[-1])
            loss, variables = model()
            gradients = tf.clip_by_global_norm([merged(g) for g in tf.gradients(loss, variables)], 0.2)[0]
            optimizer = v1.train.AdamOptimizer(0.05, epsilon=1e-3)
            pairs = zip(gradients, variables, strict=True)
            step = optimizer.apply_gradients(pairs, v1.train.get_or_create_global_step())
            return run(step, loss, feeds, tfdist.rank() == 0 or len(feeds[0]["x"]) == BATCH)

    assert_program_law(train, steps=STEPS, set_seed=seeds.append)


def fed(feed: Feed) -> dict[str, np.ndarray]:
    return {f"{name}:0": value for name, value in feed.items()}


def values(session: Any) -> dict[str, np.ndarray]:
    variables = session.graph.get_collection("variables")
    return dict(zip([v.name for v in variables], session.run(variables), strict=True))


class Watch(v1.train.SessionRunHook):
    """Fetches the loss in each run, and reads the variables at the end."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss
        self.losses: list[float] = []
        self.values: dict[str, np.ndarray] = {}

    def before_run(self, context: Any) -> Any:
        return v1.train.SessionRunArgs({"loss": self.loss})

    def after_run(self, context: Any, found: Any) -> None:
        self.losses.append(found.results["loss"])

    def end(self, session: Any) -> None:
        self.values = values(session)


def case_monitored_with_a_scaffold_and_hooks() -> None:
    """Only rank 0 has a directory and an ``init_fn``, which sets different values."""

    def run(step: Any, loss: Any, feeds: list[Feed], first: bool) -> dict[str, np.ndarray]:
        w = v1.trainable_variables()[0]

        def start(scaffold: Any, session: Any) -> None:
            if first:
                w.load(np.full(w.shape, 0.3, np.float32), session)

        watch = Watch(loss)
        hooks = [v1.train.StopAtStepHook(last_step=STEPS), v1.train.NanTensorHook(loss), watch]
        remaining = iter(feeds)
        scaffold = v1.train.Scaffold(init_fn=start, saver=v1.train.Saver(max_to_keep=1))
        options = {"hooks": hooks, "save_checkpoint_steps": 2, "log_step_count_steps": None}
        with tempfile.TemporaryDirectory() as directory:
            with v1.train.MonitoredTrainingSession(
                scaffold=scaffold, checkpoint_dir=directory if first else None, **options
            ) as session:
                while not session.should_stop():
                    session.run({"train": step}, fed(next(remaining)))
            assert first == (tf.train.latest_checkpoint(directory) is not None)
        assert len(watch.losses) == STEPS
        return watch.values

    law(run)


def case_monitored_by_step_functions() -> None:
    def run(step: Any, loss: Any, feeds: list[Feed], first: bool) -> dict[str, np.ndarray]:
        watch, remaining = Watch(loss), iter(feeds)

        def one(step_context: Any) -> None:
            step_context.session.run(step, fed(next(remaining)))

        with v1.train.SingularMonitoredSession(hooks=[watch]) as session:
            for _ in feeds:
                session.run_step_fn(one)
        return watch.values

    law(run)


def case_restored_on_rank_0_and_run_through_a_callable() -> None:
    def run(step: Any, loss: Any, feeds: list[Feed], first: bool) -> dict[str, np.ndarray]:
        saver = v1.train.Saver(v1.trainable_variables())
        initializer = v1.global_variables_initializer()
        inputs = [v1.get_default_graph().get_tensor_by_name(f"{name}:0") for name in "xyi"]
        with v1.Session() as session, tempfile.TemporaryDirectory() as directory:
            session.run(initializer)
            if first:
                saver.save(session, f"{directory}/model")
            session.run(initializer)
            if first:
                saver.restore(session, f"{directory}/model")
            train = session.make_callable([step, loss], inputs)
            for feed in feeds:
                train(*(feed[name] for name in "xyi"))
            return values(session)

    law(run)


def case_callables_from_options() -> None:
    """Callables made as Keras makes them."""

    def run(step: Any, loss: Any, feeds: list[Feed], first: bool) -> dict[str, np.ndarray]:
        options = config_pb2.CallableOptions(
            feed=[f"{name}:0" for name in "xyi"], fetch=[loss.name], target=[step.name]
        )
        with v1.Session() as session:
            session.run([v.initializer for v in v1.global_variables()])
            train = session._make_callable_from_options(options)
            for feed in feeds:
                train(feed["x"], feed["y"], feed["i"].astype("int32"))
            return values(session)

    law(run)
