"""Saves: if all ranks save under one path, one of them writes, and the calls of the others return as if they had.

The ranks have different values in a variable that is not trained. The saved file is complete and has rank 0's values.
Each rank can load it as soon as its own call returns.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank import inside
from tests.multirank.inside import everywhere
from tests.multirank.oracle import v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
TIMES = 4


@contextlib.contextmanager
def shared_folder() -> Iterator[str]:
    """Make one folder for all ranks."""
    folder = everywhere(tempfile.mkdtemp() if RANK == 0 else "")[0]
    try:
        yield folder
    finally:
        everywhere(0)
        if RANK == 0:
            shutil.rmtree(folder, ignore_errors=True)


class Values(tf.Module):
    """A module with a variable whose value differs by rank, and a function to export."""

    def __init__(self) -> None:
        super().__init__()
        self.own = tf.Variable(tf.zeros([20_000]))

    def set(self, number: int) -> None:
        self.own.assign(tf.fill([20_000], float(10 * number + RANK)))

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def first(self, x: Any) -> Any:
        return x + self.own[0]


def in_checkpoint(prefix: str) -> float:
    """Return the value of ``own`` in a checkpoint, in which all elements must be equal."""
    reader = tf.train.load_checkpoint(prefix)
    name = next(n for n in reader.get_variable_to_shape_map() if "own" in n)
    (value,) = set(reader.get_tensor(name).tolist())
    return float(value)


def save_often(
    folder: str,
    kind: str,
    set_value: Callable[[int], object],
    save: Callable[[str], object],
    load: Callable[[str], float],
) -> None:
    """Save at the same time, at random times, and repeatedly, with the same results on all ranks."""
    for number in range(TIMES):
        with subtest(kind, number):
            path = f"{folder}/{kind}-{number}"
            set_value(number)
            if number % 2:
                everywhere(0)
            else:
                time.sleep(0.02 * random.random())
            result = save(path)
            assert load(path) == 10 * number
            assert len(set(everywhere(repr(result)))) == 1


def model_of(package: Any) -> Any:
    return package.Sequential(
        [package.layers.InputLayer((3,)), package.layers.Dense(40), package.layers.BatchNormalization()]
    )


def savers_of_models(package: Any, more: dict[str, tuple[str, Callable[[Any, str], object]]]) -> None:
    """Yield each way to save a model and to load it again."""
    model = model_of(package)
    model.compile("sgd", "mse")

    def value(of: Any) -> float:
        (mean,) = set(of.layers[-1].moving_mean.numpy().tolist())
        return float(mean)

    def loaded(path: str) -> float:
        return value(package.models.load_model(path, compile=False))

    def weights(path: str) -> float:
        fresh = model_of(package)
        fresh.load_weights(path)
        return value(fresh)

    ways: dict[str, tuple[str, Callable[[Any, str], object]]] = {
        "file": (".keras", lambda m, path: m.save(path)),
        "hdf5": (".h5", lambda m, path: m.save(path)),
        "function": (".keras", lambda m, path: package.models.save_model(m, filepath=path)),
        "weights": (".weights.h5", lambda m, path: m.save_weights(path)),
        **more,
    }
    with shared_folder() as folder:
        for kind, (suffix, save) in ways.items():
            save_often(
                folder,
                kind,
                lambda number: model.layers[-1].moving_mean.assign(np.full(40, 10.0 * number + RANK)),
                lambda path, save=save, suffix=suffix: save(model, path + suffix),  # type: ignore[misc]
                lambda path, kind=kind, suffix=suffix: (weights if "weights" in kind else loaded)(path + suffix),  # type: ignore[misc]
            )
        model.save(f"{folder}/file-0.keras", overwrite=True)
        assert not [name for name in everywhere(sorted(os.listdir(folder)))[0] if name.startswith(".")]


def case_models_of_keras() -> None:
    savers_of_models(keras, {"folder": ("", lambda model, path: model.save(path, zipped=False))})


def case_models_of_tf_keras() -> None:
    try:
        import tf_keras
    except ImportError:
        return
    ways: dict[str, tuple[str, Callable[[Any, str], object]]] = {
        "saved model": ("", lambda model, path: model.save(path)),
        "weights of TensorFlow": ("", lambda model, path: model.save_weights(path)),
        "weights in hdf5": (".h5", lambda model, path: model.save_weights(path)),
    }
    savers_of_models(tf_keras, ways)


def case_files_of_packages_on_top_of_keras() -> None:
    """They open HDF5 files by themselves: Keras's store, as KerasHub for LoRA weights, or h5py's file, as CSBDeep."""
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.saving.saving_lib import H5IOStore

    layer = keras.layers.Dense(1)
    layer.build([None, 20_000])
    model = keras.Sequential([keras.Input([20_000]), layer])

    def store(path: str) -> None:
        opened = H5IOStore(path, mode="w")
        layer.save_own_variables(opened.make("lora/0"))
        opened.close()

    def by_hand(path: str) -> None:
        with h5py.File(Path(path), "w") as file:
            legacy_h5_format.save_weights_to_hdf5_group(file, model)

    def never_closed(path: str) -> None:
        file = h5py.File(path, "w")
        file["dense/own"] = layer.kernel.numpy()

    def load(path: str) -> float:
        with h5py.File(path) as file:
            found: list[Any] = []
            file.visititems(lambda name, item: found.append(item[:]) if getattr(item, "size", 0) == 20_000 else None)
            (value,) = set(found[0].ravel().tolist())
            return float(value)

    def set_value(number: int) -> None:
        layer.kernel.assign(tf.fill([20_000, 1], float(10 * number + RANK)))

    with shared_folder() as folder:
        for save in (store, by_hand, never_closed):
            save_often(folder, save.__name__, set_value, save, load)
        for _ in range(9):  # over and over, while another rank reads the one before
            store(f"{folder}/again.h5")
            load(f"{folder}/again.h5")
        kept = h5py.File(f"{folder}/kept.h5", "w")
        kept["own"] = [RANK]
        kept.flush()
        assert os.path.exists(f"{folder}/kept.h5") and kept.filename == f"{folder}/kept.h5"
        set_value(3)
        by_hand(f"{folder}/{RANK}.h5")  # each rank its own file
        assert load(f"{folder}/{RANK}.h5") == 30 + RANK
        with h5py.File(f"{folder}/{RANK}.h5", "a") as file:
            file.attrs["rank"] = RANK
        with tfdist.alone("a file of this rank"):
            by_hand(f"{folder}/alone-{RANK}.h5")
        assert load(f"{folder}/alone-{RANK}.h5") == 30 + RANK


def case_exported_models() -> None:
    values = Values()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])

    def exported(path: str) -> float:
        found = tf.saved_model.load(path)  # (the loaded functions need this object)
        return float(found.first(0.0))

    with shared_folder() as folder:
        save_often(folder, "module", values.set, lambda path: tf.saved_model.save(values, path), exported)
        model.layers[-1].moving_variance.assign([1.0 + RANK] * 2)
        model.export(f"{folder}/model")
        served = tf.saved_model.load(f"{folder}/model")
        x = np.ones([1, 3], np.float32)
        np.testing.assert_allclose(everywhere(served.serve(x).numpy())[0], served.serve(x), rtol=1e-6)
        np.testing.assert_allclose(everywhere(model(x).numpy())[0], served.serve(x), rtol=1e-4)


def case_checkpoints() -> None:
    values = Values()
    checkpoint = tf.train.Checkpoint(values=values)
    with shared_folder() as folder:
        manager = tf.train.CheckpointManager(checkpoint, f"{folder}/kept", max_to_keep=2)

        def save(path: str) -> object:
            found = checkpoint.save(path)
            return found, int(checkpoint.save_counter), tf.train.latest_checkpoint(folder)

        def keep(path: str) -> object:
            found = manager.save()
            restored = checkpoint.restore(manager.latest_checkpoint)  # (last, because it changes the value)
            return found, manager.checkpoints, tf.train.latest_checkpoint(f"{folder}/kept"), bool(restored)

        save_often(folder, "written", values.set, checkpoint.write, in_checkpoint)
        save_often(
            folder, "saved", values.set, save, lambda path: in_checkpoint(f"{path}-{int(checkpoint.save_counter)}")
        )
        save_often(folder, "managed", values.set, keep, lambda path: in_checkpoint(str(manager.latest_checkpoint)))
        assert values.own.numpy()[0] == 10 * (TIMES - 1)
        files = [name for name in os.listdir(f"{folder}/kept") if name.endswith(".index")]
        assert len(everywhere(files)[0]) == 2


def case_savers_of_sessions() -> None:
    with shared_folder() as folder, tf.Graph().as_default(), v1.Session() as session:
        own = v1.get_variable("own", [2000], initializer=v1.zeros_initializer(), trainable=False)
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        count = v1.train.get_or_create_global_step()
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w) * (RANK + 1.0), count)
        saver, sharded = v1.train.Saver(max_to_keep=2), v1.train.Saver(sharded=True)
        session.run(v1.global_variables_initializer())
        checkpoint = tf.train.Checkpoint(own=own)
        os.makedirs(f"{folder}/numbered", exist_ok=True)

        def set_value(number: int) -> None:
            session.run(step)
            own.load(np.full(2000, 10.0 * number + RANK), session)

        def numbered(path: str) -> object:
            found = saver.save(session, f"{folder}/numbered/m", count)
            return found, saver.last_checkpoints, tf.train.latest_checkpoint(f"{folder}/numbered")

        def built(path: str) -> object:
            builder = v1.saved_model.Builder(path)
            builder.add_meta_graph_and_variables(session, ["serve"])
            return builder.save()

        def in_model(path: str) -> float:
            assert Path(path, "saved_model.pb").exists()
            return in_checkpoint(f"{path}/variables/variables")

        save_often(folder, "numbered", set_value, numbered, lambda path: in_checkpoint(saver.last_checkpoints[-1]))
        save_often(folder, "sharded", set_value, lambda path: sharded.save(session, path), in_checkpoint)
        save_often(folder, "checkpoint", set_value, checkpoint.write, in_checkpoint)
        save_often(
            folder,
            "simple",
            set_value,
            lambda path: v1.saved_model.simple_save(session, path, {"x": w}, {"y": w}),
            in_model,
        )
        save_often(folder, "built", set_value, built, in_model)
        kept = [name for name in os.listdir(f"{folder}/numbered") if name.endswith((".index", ".meta"))]
        assert len(everywhere(kept)[0]) == 4


def case_eager_savers_of_graphs() -> None:
    values = Values()
    saver = v1.train.Saver([values.own], max_to_keep=2)
    with shared_folder() as folder:
        for number in range(3):
            values.set(number)
            found = saver.save(None, f"{folder}/m", global_step=number)
            assert found == f"{folder}/m-{number}" == tf.train.latest_checkpoint(folder)
            (value,) = set(tf.train.load_checkpoint(found).get_tensor("Variable").tolist())
            assert value == 10 * number
            assert len(set(everywhere(repr(saver.last_checkpoints)))) == 1


def case_paths_of_some_ranks() -> None:
    """No rank waits for a rank that saves nothing, or under another path."""
    values = Values()
    checkpoint = tf.train.Checkpoint(values=values)
    with shared_folder() as folder:
        for number in range(3):
            values.set(number)
            everywhere(0)
            if RANK == 0:
                checkpoint.write(f"{folder}/first")
                checkpoint.write(f"{folder}/all")
            if RANK == SIZE - 1:
                checkpoint.write(f"{folder}/last")
            own = checkpoint.write(f"{folder}/own-{RANK}")
            assert in_checkpoint(own) == 10 * number + RANK
            for _ in range(2):  # again, with no call of all ranks between
                checkpoint.write(f"{folder}/all")
                assert in_checkpoint(f"{folder}/all") == 10 * number
            if RANK:
                checkpoint.write(f"{folder}/others")
                assert in_checkpoint(f"{folder}/others") - 10 * number in range(1, SIZE)
            everywhere(0)
            assert in_checkpoint(f"{folder}/last") == 10 * number + SIZE - 1
            assert in_checkpoint(f"{folder}/first") == 10 * number
        with tfdist.alone("a look"):
            checkpoint.write(f"{folder}/alone-{RANK}")


def case_ranks_in_groups_are_not_waited_for() -> None:
    """Ranks that wait in a group's collective for a rank that saves do not continue before it arrives."""
    values = Values()
    checkpoint = tf.train.Checkpoint(values=values)
    groups = [tfdist.new_group(ranks) for ranks in ([0, SIZE - 1], sorted({1 % SIZE, SIZE - 1}))]
    ends, last = groups
    for group in groups:
        if RANK in group.ranks:
            tfdist.all_reduce(1.0, group=group)
    with shared_folder() as folder:
        for number in range(2):
            values.set(number)
            everywhere(0)
            if RANK == 1:  # rank 0 waits for the last rank, and the last rank for rank 1
                checkpoint.write(f"{folder}/one")
                assert in_checkpoint(f"{folder}/one") == 10 * number + 1
            if RANK in (1, SIZE - 1):
                tfdist.all_reduce(1.0, group=last)
            if RANK in (0, SIZE - 1):
                tfdist.all_reduce(1.0, group=ends)
            checkpoint.write(f"{folder}/all")
            assert in_checkpoint(f"{folder}/all") == 10 * number
    for group in groups:
        group.close()


def case_a_save_of_one_rank_while_a_block_travels() -> None:
    """The exchange takes place in another thread, and the next step waits for it."""
    with inside.settings(inside.through_mpi()), shared_folder() as folder:
        tfdist.configure(sync="average:steps=1:delay=1:state=keep")
        w = tf.Variable([1.0, 2.0])
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w) * (RANK + 1.0)
            optimizer.apply([tape.gradient(loss, w)], [w])

        for number in range(6):
            step()
            if RANK == SIZE - 1:
                begun = time.monotonic()
                tf.train.Checkpoint(w=w).write(f"{folder}/own-{number}")
                assert time.monotonic() - begun < 5
        tfdist.end_block()


def case_what_goes_wrong_goes_wrong_everywhere() -> None:
    """An exception of the rank that writes is raised on all ranks, so a script that catches it acts equally on all."""
    values = Values()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with shared_folder() as folder:
        Path(folder, "file").touch()
        everywhere(0)
        for save in (
            lambda: model.save(f"{folder}/missing/model.keras"),
            lambda: model.save_weights(f"{folder}/missing/model.weights.h5"),
            lambda: model.save_weights(f"{folder}/named otherwise"),
            lambda: tf.train.Checkpoint(values=values).write(f"{folder}/file/checkpoint"),
            lambda: tf.saved_model.save(values, f"{folder}/file/model"),
        ):
            error: Exception | None = None
            try:
                save()
            except Exception as found:
                error = found
            said = everywhere((type(error).__name__, str(error)))
            assert error is not None and len(set(said)) == 1, said
        # Incomplete files have been removed.
        model.save(f"{folder}/model.keras")
        before = everywhere(Path(folder, "model.keras").read_bytes())[0]
        original = keras.src.saving.saving_lib._save_model_to_fileobj
        keras.src.saving.saving_lib._save_model_to_fileobj = _on_a_full_disk  # type: ignore[attr-defined]
        try:
            model.save(f"{folder}/model.keras")
        except OSError as found:
            error = found
        finally:
            keras.src.saving.saving_lib._save_model_to_fileobj = original  # type: ignore[attr-defined]
        assert set(everywhere(str(error))) == {"[Errno 28] No space left on device"}
        assert Path(folder, "model.keras").read_bytes() == before
        assert set(everywhere(tuple(sorted(os.listdir(folder))))) == {("file", "model.keras")}


def _on_a_full_disk(model: Any, file: Any, weights_format: str = "h5", **more: Any) -> None:
    file.write(b"a part")
    raise OSError(28, "No space left on device")


def case_threads() -> None:
    """Saves of other threads are counted, wherever the ranks are by then."""
    values = Values()
    checkpoint = tf.train.Checkpoint(values=values)
    own = random.Random(RANK)
    with shared_folder() as folder:
        for number in range(3):
            values.set(number)
            everywhere(0)

            def save() -> None:
                time.sleep(0.1 * own.random())
                checkpoint.write(f"{folder}/all")

            thread = threading.Thread(target=save)
            thread.start()
            for _ in range(5):
                everywhere(0)
                time.sleep(0.01 * own.random())
            thread.join()
            assert in_checkpoint(f"{folder}/all") == 10 * number
        options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
        manager = tf.train.CheckpointManager(checkpoint, f"{folder}/kept", max_to_keep=2)
        for number in range(4):
            values.set(number)
            everywhere(0)
            manager.save(options=options)
        manager.sync()
        assert in_checkpoint(str(tf.train.latest_checkpoint(f"{folder}/kept"))) == 30
        assert len(set(everywhere(repr(manager.checkpoints)))) == 1


def case_monitored_sessions() -> None:
    """The hook that saves at intervals uses rank 0's clock; if each rank has its own folder, each rank's own clock."""
    own = random.Random(RANK)

    def run(folder: str, last_step: int) -> int:
        with tf.Graph().as_default():
            count = v1.train.get_or_create_global_step()
            w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
            values = v1.get_variable("own", [100], initializer=v1.zeros_initializer(), trainable=False)
            to = v1.placeholder(tf.float32, [100])
            assign = values.assign(to)
            v1.summary.scalar("sum", tf.reduce_sum(w))
            step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w) * (RANK + 1.0), count)
            hooks = [v1.train.StopAtStepHook(last_step=last_step)]
            options: Any = {"save_checkpoint_secs": 0.05 + 0.03 * RANK, "save_summaries_steps": 3}
            with v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, **options) as session:
                first = int(session.run(count))
                while not session.should_stop():
                    session.run(step)
                    session.run_step_fn(
                        lambda step_context: step_context.session.run(assign, {to: np.full(100, float(RANK))})
                    )
                    time.sleep(0.02 * own.random())
        return first

    with shared_folder() as folder:
        for last in (12, 24):
            assert run(f"{folder}/all", last) == last - 12
            latest = str(tf.train.latest_checkpoint(f"{folder}/all"))
            assert latest.endswith(f"-{last}") and in_checkpoint(latest) == 0
        steps = [int(name.split("-")[1].split(".")[0]) for name in os.listdir(f"{folder}/all") if ".index" in name]
        assert len(set(everywhere(tuple(sorted(steps))))) == 1
        if RANK == 0:
            for events in Path(folder, "all").glob("events*"):
                assert len(list(v1.train.summary_iterator(str(events)))) > 4
        run(f"{folder}/{RANK}", 12)
        assert in_checkpoint(str(tf.train.latest_checkpoint(f"{folder}/{RANK}"))) == RANK


def case_callbacks_of_tf_keras() -> None:
    """Files that callbacks save, in every step and epoch, have rank 0's moving statistics."""
    try:
        import tf_keras
    except ImportError:
        return
    model = model_of(tf_keras)
    model.compile("sgd", "mse")
    x = np.random.RandomState(RANK).rand(32, 3).astype(np.float32) * (RANK + 1)
    with shared_folder() as folder:
        callbacks = [
            tf_keras.callbacks.ModelCheckpoint(f"{folder}/epoch.keras"),
            tf_keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: model.save_weights(f"{folder}/steps.weights.h5"),
                on_epoch_end=lambda epoch, logs: model.save_weights(f"{folder}/tensorflow"),
            ),
        ]
        model.fit(x, np.ones([32, 40]), batch_size=8, epochs=2, callbacks=callbacks, verbose=0)
        own = model.layers[-1].moving_mean.numpy()
        first = everywhere(own)[0]
        fresh = model_of(tf_keras)
        for path in "epoch.keras", "steps.weights.h5", "tensorflow":
            if path == "epoch.keras":
                found = tf_keras.models.load_model(f"{folder}/{path}")
            else:
                fresh.load_weights(f"{folder}/{path}").expect_partial() if path == "tensorflow" else (
                    fresh.load_weights(f"{folder}/{path}")
                )
                found = fresh
            np.testing.assert_array_equal(found.layers[-1].moving_mean.numpy(), first)
        assert SIZE == 1 or np.abs(everywhere(own)[-1] - first).max() > 1e-3


def case_machines_with_folders_of_their_own() -> None:
    """One rank of each machine writes; if all see the same file, only rank 0 writes."""
    values = Values()
    checkpoint = tf.train.Checkpoint(values=values)
    name = everywhere(f"/dev/shm/tfdist-{os.getpid()}" if RANK == 0 else "")[0]
    hosts = everywhere(os.uname().nodename)
    others = [rank for rank, host in enumerate(hosts) if host == hosts[RANK] != hosts[0]]  # the first to come writes
    try:
        for number in range(2):
            values.set(number)
            everywhere(0)
            checkpoint.write(f"{name}/checkpoint")
            assert in_checkpoint(f"{name}/checkpoint") - 10 * number in (others or [0])
    finally:
        everywhere(0)
        shutil.rmtree(name, ignore_errors=True)
    with shared_folder() as folder:
        for number in range(2):
            values.set(number)
            everywhere(0)
            checkpoint.write(f"{folder}/checkpoint")
            assert in_checkpoint(f"{folder}/checkpoint") == 10 * number
            if RANK == SIZE - 1:
                checkpoint.write(f"{folder}/last")
                assert in_checkpoint(f"{folder}/last") == 10 * number + RANK


def case_after_ranks_have_joined() -> None:
    """After a join, ranks with fewer steps are at the same position as the others."""
    with shared_folder() as folder, tf.Graph().as_default(), v1.Session() as session:
        own = v1.get_variable("own", [100], initializer=v1.zeros_initializer(), trainable=False)
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w) * (RANK + 1.0))
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        for _ in range(2 + RANK):
            session.run(step)
        tfdist.join()
        position = inside.job().world.waits.position.now
        assert len(set(everywhere(position))) == 1
        own.load(np.full(100, float(RANK)), session)
        assert in_checkpoint(saver.save(session, f"{folder}/m")) == 0
