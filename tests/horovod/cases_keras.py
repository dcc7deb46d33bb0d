"""Horovod's interface for Keras: fit with Horovod's callbacks, values, saved models, elastic state."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist.horovod.keras as hvd
from tests.multirank.inside import everywhere
from tests.multirank.oracle import one_process
from tfdist.transport.errors import DisagreementError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
BATCH = 12  # rows of all ranks
ROWS = 60


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return the data of all ranks: x, float32 [ROWS, 4], and y, float32 [ROWS, 2]."""
    random = np.random.RandomState(5)
    x = random.randn(ROWS, 4).astype(np.float32)
    return x, (x @ random.randn(4, 2) + 0.1 * random.randn(ROWS, 2)).astype(np.float32)


def shares(x: np.ndarray) -> np.ndarray:
    """Return this rank's rows; in each step, the ranks' batches together are one process's batch."""
    return x[RANK::SIZE]


def model(seed: int, rate: float = 0.1, momentum: float = 0.9, wraps: bool = True, **options: Any) -> keras.Model:
    """Return a compiled model of two layers."""
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input([4]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(rate, momentum=momentum)
    made.compile(hvd.DistributedOptimizer(optimizer, **options) if wraps else optimizer, "mse")
    return made


def expected(**options: Any) -> list[np.ndarray]:
    """Return one process's weights after training with the global batch."""

    def compute() -> list[np.ndarray]:
        one = model(0, wraps=False, **options)
        one.fit(*data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return one.get_weights()

    return list(one_process(compute))


def same(found: Any, wanted: Any, atol: float = 1e-5) -> None:
    """Assert that two lists of arrays are close."""
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=atol)


def case_fit_is_that_of_one_process() -> None:
    """Each rank has its own initial weights; the callback broadcasts rank 0's."""
    trained = model(RANK)
    x, y = data()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = trained.fit(
        shares(x), shares(y), batch_size=BATCH // SIZE, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    )
    same(trained.get_weights(), expected())
    losses = everywhere(history.history["loss"])
    assert all(np.allclose(own, losses[0], rtol=1e-6) for own in losses)


def case_without_the_callback_each_rank_keeps_its_weights() -> None:
    trained = model(RANK)
    before = trained.get_weights()
    x, y = data()
    trained.fit(shares(x), shares(y), batch_size=BATCH // SIZE, epochs=1, shuffle=False, verbose=0)
    changes = [b - a for a, b in zip(before, trained.get_weights(), strict=True)]
    kernels, moved = everywhere(trained.get_weights()[0]), everywhere(changes[0])
    assert SIZE == 1 or not np.allclose(kernels[0], kernels[1])
    assert np.abs(changes[0]).max() > 0 and (SIZE == 1 or np.abs(moved[1] - moved[0]).max() > 0)


def case_an_eager_fit_and_several_passes() -> None:
    wanted = expected()
    x, y = data()
    for options in ({"run_eagerly": True}, {"steps_per_execution": 2}):
        trained = model(RANK)
        trained.compile(trained.optimizer, "mse", **options)
        trained.fit(
            shares(x), shares(y), batch_size=BATCH // SIZE, epochs=2, shuffle=False, verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )  # fmt: skip
        same(trained.get_weights(), wanted)
    if BATCH // SIZE % 2 == 0:  # two backward passes with half the batch
        trained = model(RANK, backward_passes_per_step=2, average_aggregated_gradients=True)
        trained.fit(
            shares(x), shares(y), batch_size=BATCH // SIZE // 2, epochs=2, shuffle=False, verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )  # fmt: skip
        same(trained.get_weights(), wanted)


def case_metrics_are_averaged() -> None:
    logs: dict[str, Any] = {"loss": float(RANK), "accuracy": RANK / 10, "f1": np.array([RANK, 1.0])}
    callback = hvd.callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, logs)
    mean = (SIZE - 1) / 2
    np.testing.assert_allclose([logs["loss"], logs["accuracy"]], [mean, mean / 10], rtol=1e-6)
    np.testing.assert_allclose(logs["f1"], [mean, 1.0])
    if SIZE > 1:
        with pytest.raises(DisagreementError, match="val_loss"):
            callback.on_epoch_end(0, {"loss": 1.0} if RANK else {"loss": 1.0, "val_loss": 2.0})


def case_a_model_that_its_first_batch_builds() -> None:
    keras.utils.set_random_seed(RANK)
    made = keras.Sequential([keras.layers.Dense(3)])
    made.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    local = tf.Variable(float(RANK))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.register_local_var(local)
    if RANK == 0:
        made.build([None, 2])  # as if rank 0 had loaded the model
    made.fit(np.ones([8, 2]), np.full([8, 3], RANK), batch_size=4, verbose=0, callbacks=[callback])
    found = everywhere(made.get_weights() + [v.numpy() for v in made.optimizer.variables])
    for other in found[1:]:
        same(other, found[0], atol=0)


def case_learning_rates() -> None:
    """The rate of each step follows Horovod's formulas."""
    x, y = data()
    rates: list[float] = []

    class Notes(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    steps = ROWS // SIZE // (BATCH // SIZE)

    def run(callback: Any, epochs: int) -> np.ndarray:
        rates.clear()
        trained = model(0, rate=0.08)
        history = trained.fit(
            shares(x), shares(y), batch_size=BATCH // SIZE, epochs=epochs, verbose=0, callbacks=[callback, Notes()]
        )
        assert len(history.history["lr"]) == epochs
        return np.array(rates).reshape(epochs, steps)

    warmed = run(hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, verbose=1), 3)
    reached = np.arange(1, 2 * steps + 1).reshape(2, steps) / steps
    np.testing.assert_allclose(warmed[:2], 0.08 / SIZE * (reached * (SIZE - 1) / 2 + 1), rtol=1e-5)
    np.testing.assert_allclose(warmed[2], 0.08, rtol=1e-5)
    stairs = run(hvd.callbacks.LearningRateScheduleCallback(0.08, multiplier=0.5, start_epoch=1), 3)
    np.testing.assert_allclose(stairs, np.array([[0.08], [0.04], [0.04]]) * np.ones(steps), rtol=1e-5)
    smooth = hvd.callbacks.LearningRateScheduleCallback(
        0.08, multiplier=lambda epoch: 1 / (1 + epoch), staircase=False, end_epoch=2
    )
    found = run(smooth, 2)
    np.testing.assert_allclose(found, 0.08 / (1 + np.arange(2 * steps).reshape(2, steps) / steps), rtol=1e-5)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="save_best_only"):
        hvd.callbacks.BestModelCheckpoint(monitor="loss")


def case_a_saved_model_goes_on() -> None:
    """Rank 0 saves the model with the optimizer's state; ``load_model`` wraps the optimizer again."""
    folder = Path(hvd.broadcast_object(mkdtemp(), 0))
    x, y = data()
    options: dict[str, Any] = {"batch_size": BATCH // SIZE, "shuffle": False, "verbose": 0}
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    trained = model(RANK)
    trained.fit(shares(x), shares(y), callbacks=callbacks, **options)
    if RANK == 0:
        trained.save(folder / "model.keras")
    hvd.allreduce(1.0, name="saved")
    loaded = hvd.load_model(folder / "model.keras")
    assert int(loaded.optimizer.iterations) == ROWS // BATCH
    loaded.fit(shares(x), shares(y), **options)
    same(loaded.get_weights(), expected())


def case_values() -> None:
    mean = (SIZE - 1) / 2
    assert hvd.allreduce(float(RANK)) == mean and isinstance(hvd.allreduce([1.0 * RANK]), np.ndarray)
    assert hvd.allreduce(RANK, op=hvd.Sum) == SIZE * mean and hvd.allreduce(RANK, average=False) == SIZE * mean
    assert hvd.allreduce(float(RANK), prescale_factor=2.0, name="v") == 2 * mean
    np.testing.assert_array_equal(hvd.allgather([[RANK]]), [[r] for r in range(SIZE)])
    assert hvd.broadcast([RANK], SIZE - 1) == [SIZE - 1]
    np.testing.assert_allclose(hvd.reducescatter(np.arange(SIZE) * (RANK + 1.0)), [RANK * (SIZE + 1) / 2])
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def case_batch_normalization_of_all_ranks() -> None:
    x = np.random.RandomState(3).randn(12, 5).astype(np.float32) * 3 + 1
    layer = hvd.SyncBatchNormalization(momentum=0.0, epsilon=1e-3)
    found = layer(shares(x), training=True)
    wanted = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    np.testing.assert_allclose(found, shares(wanted), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, x.mean(0), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def case_elastic_state() -> None:
    """Each rank has its own state until ``sync``; an error on all ranks restores the last commit."""
    made = model(RANK)
    state = hvd.elastic.KerasState(made, epoch=RANK, batch=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(1)])
    x, y = data()
    seen: list[tuple[int, np.ndarray]] = []

    @hvd.elastic.run
    def train(state: Any, fails: bool) -> str:
        seen.append((state.epoch, made.get_weights()[0]))
        made.fit(shares(x), shares(y), batch_size=BATCH // SIZE, epochs=1, verbose=0)
        if fails and len(seen) == 1:
            state.epoch = 7
            state.commit()
            made.set_weights([w + 9 for w in made.get_weights()])
            state.epoch = 8
            raise hvd.elastic.HorovodInternalError("on all ranks")
        return "done"

    assert train(state, True) == "done"
    assert resets == [1] and [epoch for epoch, _ in seen] == [0, 7]
    begun = everywhere([weights for _, weights in seen])
    for other in begun[1:]:
        same(other, begun[0], atol=0)
    assert hvd.is_initialized()

    made.fit(
        shares(x), shares(y), batch_size=BATCH // SIZE, epochs=2, verbose=0,
        callbacks=[
            hvd.elastic.CommitStateCallback(state, 2), hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ],
    )  # fmt: skip
    assert vars(state)["batch"] == 0 and vars(state)["epoch"] == 9


def case_other_elastic_states() -> None:
    import tfdist.horovod as hvd_tf

    objects = hvd_tf.elastic.ObjectState(a=RANK, b=["x"] * RANK)
    objects.sync()
    assert (objects.a, objects.b) == (0, [])  # type: ignore[attr-defined]
    objects.a = 5  # type: ignore[attr-defined]
    objects.restore()
    assert objects.a == 0  # type: ignore[attr-defined]
    variable = tf.Variable(float(RANK))
    state = hvd_tf.elastic.TensorFlowState([variable], step=RANK)
    state.sync()
    assert float(variable) == 0 and state.step == 0  # type: ignore[attr-defined]
    variable.assign(4.0)
    state.save()
    variable.assign(5.0)
    state.restore()
    assert float(variable) == 4
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        one = v1.get_variable("one", initializer=float(RANK + 1))
        session.run(v1.global_variables_initializer())
        in_graph = hvd_tf.elastic.TensorFlowState(session=session, step=RANK)
        in_graph.sync()
        assert session.run(one) == 1
        session.run(one.assign(3.0))
        in_graph.restore()
        assert session.run(one) == 1
    with pytest.raises(ValueError, match="built"):
        hvd_tf.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))
