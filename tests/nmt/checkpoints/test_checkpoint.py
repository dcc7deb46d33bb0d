"""Checkpoints: complete or absent, and readable by TensorFlow alone."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import Checkpoints, check_exists, checksum, latest, restore, step_of
from nmt.checkpoints.run_directory import mean_values
from nmt.core.errors import InputError

v1 = tf.compat.v1


class Model:
    """One variable in a session."""

    def __init__(self, shape: tuple[int, ...] = (200,), name: str = "weights") -> None:
        with tf.Graph().as_default() as graph:
            self.variable = v1.get_variable(name, shape, initializer=v1.zeros_initializer())
            self.new = v1.placeholder(tf.float32, [])
            self.set = v1.assign(self.variable, tf.fill(shape, self.new))
            self.saver = v1.train.Saver(max_to_keep=None)
        self.session = v1.Session(graph=graph)

    def put(self, value: float) -> None:
        self.session.run(self.set, {self.new: value})

    def value(self) -> float:
        return float(self.session.run(self.variable)[0])


def saved(directory: Path, *steps: int, keep: int = 5) -> Model:
    model = Model()
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        model.put(step)
        assert checkpoints.save(model.session, model.saver, step) == str(directory / f"translate.ckpt-{step}"), step
    return model


def test_round_trip(tmp_path: Path) -> None:
    saved(tmp_path / "new", 3, 12)
    path = latest(tmp_path / "new")
    assert path == str(tmp_path / "new" / "translate.ckpt-12")
    assert step_of(path) == 12
    model = Model()
    restore(model.session, model.saver, path)
    assert model.value() == 12


def test_keeps_the_newest_and_leaves_nothing_else(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 10, keep=2)
    names = {path.name for path in tmp_path.iterdir()}
    kept = {f"translate.ckpt-{step}.{end}" for step in (3, 10) for end in ("data-00000-of-00001", "index")}
    assert names == kept | {"checkpoint"}


def test_tensorflow_finds_them(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "translate.ckpt-2")
    state = tf.train.get_checkpoint_state(tmp_path)
    assert [Path(path).name for path in state.all_model_checkpoint_paths] == [
        "translate.ckpt-1",
        "translate.ckpt-2",
    ]


def test_without_the_list_the_newest_counts(tmp_path: Path) -> None:
    saved(tmp_path, 9, 10)
    (tmp_path / "checkpoint").unlink()
    assert latest(tmp_path) == str(tmp_path / "translate.ckpt-10")


def test_none(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None


def test_an_interrupted_save_leaves_the_old_one(tmp_path: Path) -> None:
    model = saved(tmp_path, 1)
    (tmp_path / ".saving-dead").mkdir()

    class Broken:
        def save(self, session: Any, path: str, **options: Any) -> None:
            Path(path + ".data-00000-of-00001").write_bytes(b"half")
            raise OSError("No space left on device")

    with pytest.raises(InputError, match="No space left"):
        Checkpoints(tmp_path).save(model.session, Broken(), 2)
    assert latest(tmp_path) == str(tmp_path / "translate.ckpt-1")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "translate.ckpt-2"))]


def test_adopt_copies(tmp_path: Path) -> None:
    saved(tmp_path / "run", 4, 5)
    best = Checkpoints(tmp_path / "best", keep=1)
    best.adopt(str(tmp_path / "run" / "translate.ckpt-4"))
    path = best.adopt(str(tmp_path / "run" / "translate.ckpt-5"))
    assert len(list((tmp_path / "best").iterdir())) == 3
    model = Model()
    restore(model.session, model.saver, path)
    assert model.value() == 5


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Limit the size of files: writes beyond it fail as on a full disk, also TensorFlow's, which no patch reaches."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_tells_the_file_and_the_reason(tmp_path: Path) -> None:
    model = saved(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    told = pytest.raises(InputError, match=r"translate.ckpt-2 cannot be written \(.*data-.*; File too large\): free or")
    with told as error, files_of_at_most(200):
        Checkpoints(tmp_path).save(model.session, model.saver, 2)
    assert "Graph execution" not in str(error.value) and "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    restore(model.session, model.saver, str(latest(tmp_path)))


def test_damage_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = str(tmp_path / "translate.ckpt-1")
    model = Model()
    data = tmp_path / "translate.ckpt-1.data-00000-of-00001"
    content = data.read_bytes()
    for damaged, reason in (
        (content[: len(content) // 2], "Read less bytes than requested"),
        (b"", "Read less bytes than requested"),
        (content[:100] + b"\xff" * 8 + content[108:], "hecksum"),
    ):
        data.write_bytes(damaged)
        for read in (lambda: restore(model.session, model.saver, path), lambda: mean_values([path])):
            with pytest.raises(InputError, match="translate.ckpt-1 is damaged") as error:
                read()
            assert reason in str(error.value) and "Graph execution" not in str(error.value)
    data.unlink()
    with pytest.raises(InputError, match=r"translate.ckpt-1.data-\* is missing"):
        restore(model.session, model.saver, path)
    (tmp_path / "translate.ckpt-1.index").write_bytes(b"")
    with pytest.raises(InputError, match="translate.ckpt-1"):
        restore(model.session, model.saver, path)


def test_checksum_tells_models_apart(tmp_path: Path) -> None:
    saved(tmp_path / "one", 1, 2)
    saved(tmp_path / "two", 1)
    found = [checksum(str(tmp_path / name)) for name in ("one/translate.ckpt-1", "one/translate.ckpt-2")]
    assert found[0] != found[1]
    assert checksum(str(tmp_path / "two/translate.ckpt-1")) == found[0]


def test_another_model_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for other in (Model((3,)), Model(name="others")):
        with pytest.raises(InputError, match="does not fit the model"):
            restore(other.session, other.saver, str(tmp_path / "translate.ckpt-1"))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="translate.ckpt-7.index is missing"):
        check_exists(str(tmp_path / "translate.ckpt-7"))
    saved(tmp_path, 1)
    (tmp_path / "translate.ckpt-1.index").unlink()
    with pytest.raises(InputError, match="translate.ckpt-1.index is missing"):
        latest(tmp_path)


def test_paths_that_are_no_checkpoint_tell_which_there_are(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    there = f"existing checkpoints are {tmp_path}/translate.ckpt-1, {tmp_path}/translate.ckpt-2"
    for path, said in (
        (tmp_path / "translate.ckpt-7", "translate.ckpt-7.index is missing"),
        (tmp_path, "is a directory"),
        (tmp_path / "translate.ckpt-1.index", "is one file of a checkpoint"),
        (tmp_path / "translate.ckpt-1.data-00000-of-00001", "is one file of a checkpoint"),
    ):
        with pytest.raises(InputError) as told:
            check_exists(str(path))
        assert said in str(told.value) and there in str(told.value) and "delete" not in str(told.value)
    with pytest.raises(InputError, match="there is no directory"):
        check_exists(str(tmp_path / "nothing" / "translate.ckpt-1"))


def test_the_remedy_for_damage_goes_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "translate.ckpt-2.data-00000-of-00001").unlink()
    model, path = Model(), str(latest(tmp_path))
    remedy = f"delete {tmp_path}/checkpoint and {tmp_path}/translate.ckpt-2.* to go back"
    with pytest.raises(InputError, match=re.escape(remedy)):
        restore(model.session, model.saver, path)
    for damaged in [tmp_path / "checkpoint", *tmp_path.glob("translate.ckpt-2.*")]:
        damaged.unlink()
    restore(model.session, model.saver, str(latest(tmp_path)))
    assert model.value() == 1


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("rubbish")
    with pytest.raises(InputError, match="checkpoint is damaged"):
        latest(tmp_path)
