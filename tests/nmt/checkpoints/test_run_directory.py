"""What evaluations write: averaged checkpoints and the best models; other ranks write nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.run_directory import BestModel, BestScore, Store, Storing, set_aside
from nmt.core.errors import InputError

v1 = tf.compat.v1


class Weights:
    """A session with a weight and a step, which the test sets."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph:
            self.weight = v1.get_variable("weight", [2], initializer=v1.zeros_initializer())
            self.step = v1.get_variable("global_step", [], tf.int32, v1.zeros_initializer())
            self.places = v1.placeholder(tf.float32, [2]), v1.placeholder(tf.int32, [])
            self.assigned = [self.weight.assign(self.places[0]), self.step.assign(self.places[1])]
            self.saver = v1.train.Saver(max_to_keep=None)
        self.session: Any = v1.Session(graph=graph)

    def save(self, store: Store, step: int, weight: float) -> str:
        self.session.run(self.assigned, {self.places[0]: [weight, -weight], self.places[1]: step})
        return store.save(self.session, step)


def test_the_mean_of_the_newest_checkpoints(tmp_path: Path) -> None:
    weights = Weights()
    store = Store(str(tmp_path), ["bleu"], 3, True, "{}\n", weights.saver)
    other = Storing(str(tmp_path), ["bleu"], 3, True)
    assert list(store.best) == ["best_bleu", "avg_best_bleu"] == list(other.best)
    for step, weight in ((10, 1.0), (20, 2.0)):
        assert weights.save(store, step, weight) == other.save(None, step), step
        assert store.average(step) is None, step
    for step, weight, mean in ((30, 6.0, 3.0), (40, 4.0, 4.0)):  # 3 checkpoints are kept: step 40 leaves out step 10
        weights.save(store, step, weight)
        path = store.average(step)
        assert path == str(tmp_path / f"avg_checkpoints/translate.ckpt-{step}"), step
        reader = tf.train.load_checkpoint(path)
        np.testing.assert_allclose(reader.get_tensor("weight"), [mean, -mean], err_msg=f"step {step}")
        assert reader.get_tensor("global_step") == step, step
    assert len(list((tmp_path / "avg_checkpoints").glob("*.index"))) == 1
    assert (tmp_path / "avg_checkpoints" / "hparams").read_text() == "{}\n"  # hparams gives shape and words


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    weights = Weights()
    store = Store(str(tmp_path), ["bleu"], 3, False, "{}\n", weights.saver)
    first = weights.save(store, 10, 1.0)
    changed = Path(first + ".index").stat().st_mtime_ns
    assert weights.save(store, 10, 2.0) == first
    assert Path(first + ".index").stat().st_mtime_ns == changed


def test_the_best_model_is_strictly_better_and_known_again(tmp_path: Path) -> None:
    weights = Weights()
    store = Store(str(tmp_path), ["bleu", "rouge"], 3, False, "{}\n", weights.saver)
    best = store.best["best_bleu"]
    assert (best.score, best.step, best.checkpoint) == (0.0, 0, None)
    for step, score, kept in ((10, 0.0, 0), (20, 5.0, 20), (30, 5.0, 20), (40, 6.0, 40)):
        best.offer(weights.save(store, step, float(step)), score)
        assert best.step == kept, (step, score)
        silent = BestScore(tmp_path / "best_bleu", "bleu")
        assert (silent.score, silent.step) == (best.score, best.step), (step, score)
    assert best.checkpoint == str(tmp_path / "best_bleu/translate.ckpt-40")
    assert json.loads((tmp_path / "best_bleu/best.json").read_text()) == {
        "bleu": 6.0,
        "checkpoint": "translate.ckpt-40",
    }
    assert (tmp_path / "best_bleu/hparams").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("latest", "gone", "told"),
    [
        (0, "translate.ckpt-*", "its model is of step 40, and training begins after step 0: renamed to best_bleu.1"),
        (20, "translate.ckpt-40*", "its model is of step 40, and training begins after step 20: renamed to best_bleu"),
        (40, "best_bleu/translate*", "best_bleu: its model is gone: renamed to best_bleu.1"),
        (40, "none", ""),
    ],
)
def test_the_best_model_of_another_training_is_set_aside(tmp_path: Path, latest: int, gone: str, told: str) -> None:
    """Its score would win; nothing is deleted, and other ranks know the same."""
    weights = Weights()
    store = Store(str(tmp_path), ["bleu"], 3, False, "{}\n", weights.saver)
    for step in (20, 40):
        store.best["best_bleu"].offer(weights.save(store, step, 1.0), float(step))
    for path in [tmp_path / "checkpoint", *tmp_path.glob(gone)] if told else []:
        path.unlink()
    if latest == 20:  # a training that has gone back has deleted its checkpoints itself
        assert set_aside(str(tmp_path), ["bleu"], rewound=True) == []
    said = set_aside(str(tmp_path), ["bleu", "rouge"], rewound=False)
    assert len(said) == bool(told) and told in "".join(said)
    assert (tmp_path / "best_bleu.1").exists() == bool(told) == (not (tmp_path / "best_bleu").exists())
    new = Store(str(tmp_path), ["bleu"], 3, False, "{}\n", weights.saver)
    assert (new.best["best_bleu"].score, set_aside(str(tmp_path), ["bleu"], False)) == (0.0 if told else 40.0, [])
    if told and latest < 40:
        assert (tmp_path / "best_bleu.1/translate.ckpt-40.index").exists()


def test_a_damaged_record(tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text("{}")
    with pytest.raises(InputError, match="best.json is damaged"):
        BestModel(tmp_path, "bleu", "{}\n")
