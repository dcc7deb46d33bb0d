"""Keras 3: ``compile`` and ``fit`` on N ranks with batch B / N each, against one process with batch B."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import _pywrap_determinism

import tfdist
from tests.multirank.inside import captured_log, everywhere, nothing_told_of_data, settings
from tests.multirank.oracle import BATCH, assert_averages_matter, assert_close, data, merged, one_process
from tests.named import subtest

STEPS = 4
Run = Callable[[Any, np.ndarray, np.ndarray, int], Any]


def arrays(steps: int = STEPS, share: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return regression data; batch k of rank r is the rank's part of global batch k."""
    feeds = data(steps=steps)
    rows = slice(tfdist.rank(), None, tfdist.size()) if share else slice(None)
    return np.concatenate([f["x"][rows] for f in feeds]), np.concatenate([f["y"][rows] for f in feeds])


def functional() -> Any:
    inputs = keras.Input([5])
    hidden = keras.layers.Dense(7, "tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.LayerNormalization()(hidden)))


def unbuilt() -> Any:
    return keras.Sequential([keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])


class Subclassed(keras.Model):
    """A model whose training step clips the gradients before it applies them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(tf.tanh(x))

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.1)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def fit(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    return model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)


def fit_dataset(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    return model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(batch), epochs=2, verbose=0)


def fit_generator(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    """Train with a generator of unknown length."""
    spec = (tf.TensorSpec([None, 5]), tf.TensorSpec([None, 3]))
    cut = [(x[k : k + batch], y[k : k + batch]) for k in range(0, len(x), batch)]
    return model.fit(tf.data.Dataset.from_generator(lambda: iter(cut), output_signature=spec), epochs=2, verbose=0)


def train_on_batch(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    for start in range(0, len(x), batch):
        model.train_on_batch(x[start : start + batch], y[start : start + batch])


def trained(
    build: Callable[[], Any], optimizer: Callable[[], Any], run: Run, share: bool, seed: int, **options: Any
) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = build()
    model.compile(optimizer(), "mse", **options)
    run(model, *arrays(share=share), BATCH // tfdist.size() if share else BATCH)
    return {f"{k}": np.asarray(w, np.float64) for k, w in enumerate(model.get_weights())}


def assert_fit_law(
    build: Callable[[], Any] = functional,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    run: Run = fit,
    tolerance: float = 1e-5,
    **options: Any,
) -> None:
    expected = one_process(lambda: trained(build, optimizer, run, False, 0, **options))
    assert_averages_matter(expected, lambda: trained(build, optimizer, run, True, 0, **options), 1e-3)
    assert_close(trained(build, optimizer, run, True, tfdist.rank(), **options), expected, tolerance)


def case_float8() -> None:
    """The largest values by which float8 is scaled are those of all ranks. Gradients are those of a smaller batch."""

    def quantized() -> Any:
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])
        model.quantize("float8")
        names.extend(weight.name for weight in model.weights)
        return model

    def ours(scale: str) -> dict[str, np.ndarray]:
        with settings(loss_scale=scale):
            return trained(quantized, lambda: keras.optimizers.SGD(0.1), fit, True, tfdist.rank())

    names: list[str] = []
    expected = one_process(lambda: trained(quantized, lambda: keras.optimizers.SGD(0.1), fit, False, 0))
    for scale in ("none", "64"):  # Keras has no float8 with run_eagerly
        factor = tfdist.size() * (64 if scale == "64" else 1)
        # Gradients of outputs that are larger by another factor than a power of 2 are rounded differently, to 2 bits.
        near = 2e-2 if factor.bit_count() == 1 else 2**-3
        found = ours(scale)
        for name, one, other in zip(names, found.values(), expected.values(), strict=False):
            with subtest(scale, name):
                wanted = other * factor if "outputs_grad" in name else other
                np.testing.assert_allclose(one, wanted, rtol=2e-2, atol=near * np.abs(wanted).max())
    with settings(accumulate_steps=2), pytest.raises(tfdist.SettingsError, match="is overwritten with its gradient"):
        ours("none")


def case_reduced_precision() -> None:
    def build() -> Any:
        inputs = keras.Input([5])
        hidden = keras.layers.Dense(7, "tanh", dtype="mixed_bfloat16")(inputs)
        return keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(hidden))

    def scaled() -> Any:
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, clipnorm=0.5), initial_scale=2.0**8)

    assert_fit_law(build, scaled, tolerance=2e-2)  # the forward pass rounds differently in batches of other sizes
    assert_fit_law(functional, scaled, tolerance=1e-3)


def embedding() -> Any:
    inputs = keras.Input([5])
    words = keras.layers.Lambda(lambda x: tf.cast(tf.abs(x) * 3, tf.int32) % 7)(inputs)
    flat = keras.layers.Flatten()(keras.layers.Embedding(7, 2)(words))
    return keras.Model(inputs, keras.layers.Dense(3)(flat))


def case_embeddings_stay_sparse() -> None:
    assert_fit_law(embedding)


def several(of_tables: Any, of_others: Any) -> Any:
    """Return an optimizer of Keras for tables, and another one for the other variables."""
    return keras.optimizers.MultiOptimizer(lambda v: of_tables if "embedding" in v.path else of_others)


def case_embeddings_that_differ_from_one_process_are_told() -> None:
    for make, way, said in (
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "auto", False),
        (lambda: keras.optimizers.SGD(0.1, clipnorm=0.5), "auto", True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Lion(0.1)), "auto", True),
        (lambda: keras.optimizers.Nadam(0.1), "unmerged", False),
        (lambda: several(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)), "auto", False),
        (lambda: several(keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1)), "auto", True),
    )[: 6 if hasattr(keras.optimizers, "MultiOptimizer") else 4]:  # since Keras 3.15
        with subtest(make(), way), settings(), captured_log() as lines:
            tfdist.configure(sparse=way)
            trained(embedding, make, fit, True, 0)
            told = [line for line in lines if "sparse_ways={'embedding/embeddings': 'unmerged'}" in line]
            assert len(told) == (said and tfdist.rank() == 0), lines


# These optimizers square each row separately: for a row that occurs twice, the result differs from that of the sum.
SQUARING: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.05, epsilon=1e-3),
}
MORE_SQUARING: dict[str, Callable[[], Any]] = {
    "adam, global_clipnorm": lambda: keras.optimizers.Adam(0.05, epsilon=1e-3, global_clipnorm=0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-3),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05, epsilon=1e-3, clipnorm=0.02),
}


def assert_unmerged_is_one_process(optimizers: dict[str, Callable[[], Any]], **options: Any) -> None:
    with settings():
        tfdist.configure(sparse="unmerged")
        for name, make in optimizers.items():
            with subtest(name, options):
                assert_fit_law(embedding, make, **options)


def case_embeddings_unmerged_are_those_of_one_process() -> None:
    assert_unmerged_is_one_process(SQUARING)
    with settings():
        tfdist.configure(sparse="auto", sparse_ways={"embedding/embeddings": "unmerged"})
        assert_fit_law(embedding, MORE_SQUARING["adagrad"])


def merging(make: Callable[[], Any]) -> Any:
    """Return an optimizer that merges duplicate rows before it applies the gradients."""
    optimizer = make()
    kind = type(optimizer)

    class Merging(kind):  # type: ignore[misc, valid-type]
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return super().apply([merged(g) for g in grads], trainable_variables)

    return Merging.from_config(optimizer.get_config())


def assert_merged_is_one_process(optimizers: dict[str, Callable[[], Any]]) -> None:
    for name, make in optimizers.items():
        with subtest(name):
            expected = one_process(
                functools.partial(trained, embedding, functools.partial(merging, make), fit, False, 0)
            )
            assert_close(trained(embedding, make, fit, True, tfdist.rank()), expected, 1e-5)


def case_embeddings_are_those_of_one_process_that_merges() -> None:
    """By default the optimizer gets each row once."""
    assert_merged_is_one_process(SQUARING)
    unmerged = one_process(lambda: trained(embedding, SQUARING["adam"], fit, False, 0))
    found = trained(embedding, SQUARING["adam"], fit, True, tfdist.rank())
    assert np.abs(found["0"] - unmerged["0"]).max() > 0.02, "merging makes no difference"


def case_variations_of_optimizers_that_square() -> None:
    """More optimizers, and eager mode."""
    assert_unmerged_is_one_process(MORE_SQUARING)
    assert_unmerged_is_one_process({"adam": SQUARING["adam"]}, run_eagerly=True)
    assert_merged_is_one_process(MORE_SQUARING)


def case_state_from_rank_0() -> None:
    """Only rank 0 has these weights and this optimizer state, as if it had read them from a file."""
    x, y = arrays()
    keras.utils.set_random_seed(tfdist.rank())
    model = functional()
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.optimizer.build(model.trainable_variables)
    if tfdist.rank() == 0:
        model.set_weights([np.full_like(w, 0.1) for w in model.get_weights()])
        for variable in model.optimizer.variables[2:]:
            variable.assign(np.full(variable.shape, 0.5))
    fit(model, x, y, BATCH // tfdist.size())
    found = [w.tolist() for w in (*model.get_weights(), *(np.asarray(v) for v in model.optimizer.variables))]
    assert everywhere(found) == [found] * tfdist.size()


def case_a_model_that_only_rank_0_has_loaded() -> None:
    x, y = arrays()
    path = tfdist.broadcast(f"{tempfile.mkdtemp()}/model.keras")

    def make() -> Any:
        model = keras.Sequential([keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])
        model.build([None, 5])
        model.compile(keras.optimizers.Adam(0.05), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    if tfdist.rank() == 0:
        with tfdist.alone("a training before"):
            before = make()
            fit(before, x, y, 30)
            before.save(path)
            model = keras.models.load_model(path)
    else:
        model = make()
    tfdist.barrier()
    fit(model, x, y, BATCH // tfdist.size())
    found = [w.tolist() for w in (*model.get_weights(), *(np.asarray(v) for v in model.optimizer.variables))]
    assert everywhere(found) == [found] * tfdist.size()


def case_metrics_that_are_vectors() -> None:
    x, _ = arrays()
    labels = np.eye(3)[np.arange(len(x)) % 3]
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    history = model.fit(x, labels, 30, verbose=0, class_weight={0: 1.0, 1: 2.0, 2: 1.0}).history
    assert np.shape(history["f1_score"]) == (1, 3)


def case_mistakes_are_told_by_keras() -> None:
    optimizer, variable = keras.optimizers.SGD(0.1), keras.Variable(np.ones(2))
    for gradients in ([tf.ones(2)], [tf.ones(2), tf.ones(2)]):
        try:
            optimizer.apply(gradients)
        except ValueError:
            optimizer.build([variable])
        else:
            raise AssertionError(f"it went on with {len(gradients)} gradients for a variable")


def case_uneven_epochs_end_together() -> None:
    rows = 20 + 10 * tfdist.rank()
    x, y = np.random.RandomState(tfdist.rank()).rand(rows, 5), np.zeros([rows, 3])
    for run in (fit, fit_dataset, fit_generator):
        model = functional()
        model.compile("sgd", "mse")
        run(model, x, y, 10)
        assert int(model.optimizer.iterations) == 2 * 2, run.__name__


def case_ranks_that_feed_other_kinds_of_data() -> None:
    model = functional()
    model.compile("sgd", "mse")
    (fit_dataset if tfdist.rank() else fit)(model, *arrays(), 10)
    weights = [w.tolist() for w in model.get_weights()]
    assert everywhere(weights) == [weights] * tfdist.size()


def case_logs_are_means_and_decisions_alike() -> None:
    x, y = arrays()
    model = functional()
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    seen: list[float] = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(logs["mae"])

    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9)
    history = model.fit(x, y, 30, epochs=5, verbose=0, callbacks=[Look(), stop], validation_data=(x[:7], y[:7])).history
    whole = np.abs(np.asarray(model.predict(arrays(share=False)[0], verbose=0)) - arrays(share=False)[1]).mean()
    np.testing.assert_allclose(history["mae"], whole, rtol=1e-4)
    assert seen == history["mae"] and len(seen) == 2  # an epoch without improvement
    assert everywhere(history) == [history] * tfdist.size()


class Board(keras.callbacks.TensorBoard):
    """A callback that needs no TensorBoard; subclasses of callbacks are handled too."""

    def __init__(self, path: Path) -> None:
        keras.callbacks.Callback.__init__(self)
        self._path = path

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._path.write_text(str(epoch))

    set_model = keras.callbacks.Callback.set_model
    on_train_begin = keras.callbacks.Callback.on_train_begin
    on_train_end = keras.callbacks.Callback.on_train_end
    on_test_begin = keras.callbacks.Callback.on_test_begin
    on_test_end = keras.callbacks.Callback.on_test_end
    on_train_batch_begin = keras.callbacks.Callback.on_train_batch_begin
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end
    on_epoch_end = keras.callbacks.Callback.on_epoch_end


def case_files_and_progress_are_rank_0s() -> None:
    x, y = arrays()
    directory = Path(tfdist.broadcast(tempfile.mkdtemp()))
    mine = directory / f"rank{tfdist.rank()}"
    mine.mkdir()
    model = functional()
    model.compile("adam", "mse")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        callbacks = [
            keras.callbacks.ModelCheckpoint(mine / "{epoch}.weights.h5", save_weights_only=True),
            [keras.callbacks.CSVLogger(mine / "log.csv")],
            keras.callbacks.BackupAndRestore(mine / "backup", delete_checkpoint=False),
            Board(mine / "board"),
            keras.callbacks.EarlyStopping("loss", verbose=1, patience=0, min_delta=1e9),
        ]
        model.fit(x, y, 30, epochs=3, callbacks=callbacks)
        model.evaluate(x, y)
        model.predict(x)
    assert bool(said.getvalue()) == (tfdist.rank() == 0)
    assert bool(list(mine.iterdir())) == (tfdist.rank() == 0)
    again = functional()  # interrupted, and started again
    again.compile("adam", "mse")
    epochs: list[int] = []
    backup = keras.callbacks.BackupAndRestore(mine / "backup", delete_checkpoint=False)
    again.fit(
        x,
        y,
        30,
        epochs=4,
        verbose=0,
        callbacks=[backup, keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, logs: epochs.append(e))],
    )
    assert epochs == [2, 3]
    tfdist.barrier()


def case_an_evaluation_beside_training() -> None:
    """Rank 0 evaluates another model in a thread, and where training reads its data: neither is training."""
    x, y = arrays()
    model, other = functional(), functional()
    for one in (model, other):
        one.compile(keras.optimizers.SGD(0.1), "mse")

    def evaluate(times: int = 1) -> None:
        for _ in range(times if tfdist.rank() == 0 else 0):
            other.evaluate(x, y, verbose=0)

    def batches() -> Any:
        evaluate()
        yield from ((x[k : k + 10], y[k : k + 10]) for k in range(0, len(x), 10))

    thread = threading.Thread(target=evaluate, args=[3])
    thread.start()
    fit(model, x, y, 10)
    thread.join()
    for _ in range(2):
        model.fit(batches(), verbose=0)
    assert np.ptp(everywhere(model.get_weights()[0]), axis=0).max() == 0


def case_two_models_in_turn_and_evaluation_alone() -> None:
    def build_and_run(share: bool, seed: int) -> dict[str, np.ndarray]:
        keras.utils.set_random_seed(seed)
        models = [functional(), unbuilt()]
        for model in models:
            model.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = arrays(share=share)
        for _ in range(2):
            for model in models:
                model.fit(x, y, BATCH // tfdist.size() if share else BATCH, shuffle=False, verbose=0)
                if tfdist.rank() == 0:
                    model.evaluate(x, y, verbose=0)
                    model.predict(x, verbose=0)
        return {f"{k}.{n}": w for k, m in enumerate(models) for n, w in enumerate(m.get_weights())}

    expected = one_process(lambda: build_and_run(False, 0))
    assert_close(build_and_run(True, tfdist.rank()), expected, 1e-5)


def shuffled(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    return model.fit(x, y, batch_size=batch, verbose=0)


def case_fit_again_with_more_weights() -> None:
    """Fine-tuning: the head first, then all layers, after another ``compile``. Seeds give the same bits in each run."""

    def two_fits(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> None:
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(0.05, epsilon=1e-3), "mse")
        fit(model, x, y, batch)
        model.layers[0].trainable = True
        model.compile(keras.optimizers.SGD(0.05), "mse")
        fit(model, x, y, batch)
        with tempfile.TemporaryDirectory() as folder:  # TensorFlow's profiler works in each rank
            tf.profiler.experimental.start(folder)
            fit(model, x, y, batch)
            tf.profiler.experimental.stop()
            assert list(Path(folder).rglob("*.xplane.pb"))

    def build() -> Any:
        return keras.Sequential([keras.Input([5]), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])

    assert_fit_law(build, run=two_fits)
    _pywrap_determinism.enable(True)  # tf.config.experimental.enable_op_determinism, which cannot be undone
    twice = [trained(build, lambda: keras.optimizers.SGD(0.1), two_fits, True, 7 + tfdist.rank()) for _ in range(2)]
    _pywrap_determinism.enable(False)
    for one, other in zip(*(run.values() for run in twice), strict=True):
        np.testing.assert_array_equal(one, other)


def case_equal_data_are_told_and_sharded_on_demand() -> None:
    x, y = arrays(share=False)
    for autoshard, runs in ((False, (fit, shuffled, fit_dataset, fit_generator)), (True, (fit, shuffled, fit_dataset))):
        for run in runs:
            with subtest("autoshard", autoshard, run), settings(autoshard=autoshard), nothing_told_of_data():
                model = functional()
                model.compile(keras.optimizers.SGD(0.1), "mse")
                with captured_log() as lines:
                    run(model, x, y, 10)
                    run(model, x, y, 10)
                told = [line for line in lines if "train on the same data" in line]
                assert len(told) == (tfdist.rank() == 0 and not autoshard), lines


def case_shares_of_datasets() -> None:
    """With TFDIST_AUTOSHARD=1 each example comes once an epoch, also in validation; another order is refused."""
    numbers = np.arange(64 * tfdist.size(), dtype=np.float32)[:, None]
    trained: list[float] = []
    tested: list[float] = []

    class Seen(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            (trained if training else tested).extend(np.asarray(x).ravel().tolist())
            return self.dense(x)

    def seen(data: Any) -> tuple[list[float], list[float]]:
        model = Seen()
        model.compile("sgd", "mse", run_eagerly=True)
        model(numbers[:1])
        trained.clear()
        tested.clear()
        with settings(autoshard=True):
            model.fit(data, epochs=2, verbose=0, validation_data=(numbers, numbers))
        return sorted(sum(everywhere(trained), [])), sorted(sum(everywhere(tested), []))

    def other(_: int | None) -> Any:
        """Return the batches in another order on each rank, as a generator that shuffles by Python's random numbers."""
        order = np.random.RandomState(tfdist.rank()).permutation(numbers).reshape(-1, 8, 1)
        spec = tf.TensorSpec([8, 1])
        return tf.data.Dataset.from_generator(lambda: iter(order), output_signature=spec).map(lambda x: (x, x))

    pairs = tf.data.Dataset.from_tensor_slices((numbers, numbers))
    for shuffle in (
        lambda seed: pairs.shuffle(512, seed=seed).batch(8),
        lambda seed: pairs.batch(8).shuffle(512, seed=seed).prefetch(2),
        other,
    ):
        with subtest(shuffle):
            tf.random.set_seed(0)
            seeded = shuffle(7)
            tf.random.set_seed(tfdist.rank())
            if shuffle is not other:
                assert seen(seeded) == (sorted([*numbers.ravel()] * 2), sorted([*numbers.ravel()] * 2))
            for seed in (7, None) if shuffle is not other else (7,):  # with a rank's own seed, or none
                with pytest.raises(tfdist.DisagreementError, match="come twice and others never"):
                    seen(shuffle(seed))


def case_shares_of_structures() -> None:
    """Arrays in nested structures are shared row by row; validation data without rows stay whole, which is told."""
    inputs = [keras.Input([3]), keras.Input([3])]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add()(inputs)))
    model.compile("sgd", "mse")
    rows = np.random.RandomState(7).randn(8 * tfdist.size(), 3).astype("f")
    tf.random.set_seed(7)
    data, other = tf.data.Dataset.from_tensor_slices(((rows, rows), rows[:, :1])), rows[:, :1]
    random = data.shuffle(64, seed=7).map(lambda x, y: ((x[0] + tf.random.normal([3]), x[1]), y))
    with settings(autoshard=True), captured_log() as lines:
        model.fit([rows, rows], other, 4, verbose=0, validation_data=([rows, rows], other, np.ones(len(rows))))
        model.fit(((rows, rows),), other, 4, verbose=0, validation_data=((rows, rows), (other,)))
        model.fit(random.batch(4), verbose=0, validation_data=((rows, rows), other))
        assert not [line for line in lines if "whole" in line or "all of validation_data" in line], lines
        tf.random.set_seed(tfdist.rank())
        for whole in (data.batch(64), data.shuffle(64).batch(4), (one for one in [((rows, rows), other)])):
            model.fit([rows, rows], other, 4, verbose=0, validation_data=whole, validation_steps=1)
        told = [line for line in lines if "all ranks evaluate all of validation_data" in line]
        assert len(told) == (0 if tfdist.rank() else 3), lines
        with pytest.raises(ValueError, match="unequal lengths"):
            model.fit([rows, rows[1:]], other, 4, verbose=0)


def case_equal_inputs_with_other_targets_are_not_the_same_data() -> None:
    """As the coordinates of a grid are, or a PINN's points."""
    x, y = arrays()
    model = functional()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with captured_log() as lines, nothing_told_of_data():
        fit(model, np.ones_like(x), y, 10)
    assert not [line for line in lines if "train on the same data" in line], lines


def case_a_metric_of_one_rank_is_told() -> None:
    model = functional()
    model.compile("sgd", "mse", metrics=["mae"] if tfdist.rank() else [])
    try:
        fit(model, *arrays(), 30)
        raise AssertionError("it went on")
    except tfdist.DisagreementError as error:
        assert "'mae' is logged on rank 1" in str(error)


def case_moving_statistics_can_be_averaged() -> None:
    model = keras.Sequential([keras.layers.BatchNormalization()])
    model.compile("sgd", "mse")
    x = np.full([12, 5], float(tfdist.rank()), np.float32) + np.arange(12)[:, None]
    model.fit(x, x, 4, verbose=0)
    mean = np.asarray(model.layers[0].moving_mean)
    every = np.stack(everywhere(mean))
    tfdist.average_variables(model)
    np.testing.assert_allclose(np.asarray(model.layers[0].moving_mean), every.mean(0), rtol=1e-6)


def case_learning_rates() -> None:
    from tfdist.keras import LearningRateWarmup, scale_learning_rate

    size, rates = tfdist.size(), list[float]()
    model = functional()
    model.compile(keras.optimizers.SGD(0.1), "mse")

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    model.fit(*arrays(), BATCH // size, epochs=2, verbose=0, callbacks=[LearningRateWarmup(5), Look()])
    np.testing.assert_allclose(rates, [0.1 * (1 + (size - 1) * min(k / 5, 1)) for k in range(8)], rtol=1e-6)
    schedule = scale_learning_rate(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), "sqrt", 4)
    found = [float(schedule(k)) for k in range(6)]
    np.testing.assert_allclose(
        found, [0.1 * 0.5**k * (1 + (np.sqrt(size) - 1) * min(k / 4, 1)) for k in range(6)], rtol=1e-6
    )
    assert scale_learning_rate(0.1, "sqrt") == 0.1 * np.sqrt(size)
    np.testing.assert_allclose(tfdist.schedules.scaled(0.1, warmup_steps=4)(3), 0.1 * (1 + (size - 1) * 3 / 4))
    again = type(schedule).from_config(schedule.get_config())
    assert float(again(3)) == found[3]


def case_values_and_metrics_of_other_ranks() -> None:
    from tfdist.keras import BroadcastVariables, average_metrics

    last = tfdist.size() - 1
    keras.utils.set_random_seed(tfdist.rank())
    model = functional()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    expected = tfdist.broadcast(model.get_weights(), last)
    model.fit(*arrays(), BATCH // tfdist.size(), verbose=0, callbacks=[BroadcastVariables(last)])
    for found, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert average_metrics({"loss": float(tfdist.rank())}) == {"loss": last / 2}


def case_models_that_differ_are_told() -> None:
    # (No other case has these sizes. An exchange that is already open on one rank is not compared again; then the
    # message could only say where the ranks are.)
    model = keras.Sequential([keras.layers.Dense(40 + tfdist.rank()), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    try:
        fit(model, *arrays(), 30)
        raise AssertionError("it went on")
    except tfdist.DisagreementError as error:
        assert "dense/kernel" in str(error) and "(40, 3)" in str(error), error


def case_another_backend_is_told() -> None:
    module = sys.modules["keras.src.backend"]
    optimizer, variable = keras.optimizers.SGD(0.1), keras.Variable(np.ones(2))
    before, module.backend = module.backend, lambda: "jax"  # type: ignore[attr-defined]
    try:
        optimizer.apply([np.ones(2)], [variable])
        raise AssertionError("it went on")
    except RuntimeError as error:
        assert "KERAS_BACKEND=tensorflow" in str(error)
    finally:
        module.backend = before  # type: ignore[attr-defined]
