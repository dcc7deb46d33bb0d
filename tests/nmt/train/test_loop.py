"""When things are due in a training, what its figures are, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.core.errors import InputError
from nmt.core.ranks import CollectiveError, OneProcess
from nmt.model.parts.softmax_cross_entropy import flat_places
from nmt.model.session import memory_for
from nmt.options.config import Config
from nmt.reporting.outputs import RunOutputs, Stats
from nmt.train.divergence import Guard
from nmt.train.evaluation import Evaluation
from nmt.train.loop import Window, train
from nmt.train.step import StepResult

NINE = Config(num_train_steps=9, steps_per_stats=3, steps_per_external_eval=3)


class FakeStep:
    """A step that counts updates, diverges at ``bad_step``, and leaves out the updates in ``leaves_out``."""

    decay: Any = None

    def __init__(self, bad_step: int = 0, first_step: int = 0, leaves_out: Sequence[int] = ()) -> None:
        self.seeds: list[tuple[int, ...]] = []
        self.leaves_out = bool(leaves_out)
        self._bad_step, self._step, self._left_out = bad_step, first_step, leaves_out

    def updates(self, session: Any) -> int:
        return self._step - sum(step <= self._step for step in self._left_out)

    def run(self, session: Any, batch: Any, seed: np.ndarray) -> StepResult:
        self.seeds.append(tuple(seed))
        self._step += 1
        bad = self._step == self._bad_step or self._step in self._left_out
        return StepResult(float("nan") if bad else 20.0, 10, 8, 2.0, 1.5, 0.5, self.updates(session))


class FakeFeed:
    """A feed with epochs of 7 steps."""

    parts = 1

    def epoch_ended(self, step: int) -> int:
        return 0 if step % 7 else step // 7

    def batch(self, step: int, part: int = 0) -> Any:
        class Batch:
            sentences_per_rank = 4.0
            source = target_in = np.zeros([3, 4], np.int32)

        return Batch()


class Recorder(Evaluation, RunOutputs):
    """Records the calls of the training loop."""

    best = "bleu 3.00"

    def __init__(self, best_step: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._best_step = best_step

    def best_step(self) -> int:
        return self._best_step

    def save(self, session: Any, step: int) -> None:
        self.calls.append(("save", step))

    def milestone(self, session: Any, step: int, *, perplexities: bool, scores: bool) -> None:
        self.calls.append(("milestone", step, "ppl" * perplexities, "bleu" * scores))

    def end(self, session: Any, stats: Stats) -> None:
        self.calls.append(("end", stats.step))

    def stats(self, stats: Stats, best: str) -> None:
        self.calls.append(("stats", stats.step, best))

    def say(self, text: str) -> None:
        self.calls.append(("say", text))

    def close(self) -> None:
        self.calls.append(("close",))


class StopAfter:
    """Asks the training to stop after this number of steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def asked(self) -> bool:
        self._left -= 1
        return self._left == 0


class NoStop:
    """A run that nobody stops."""

    def asked(self) -> bool:
        return False


def run(
    config: Config,
    first_step: int = 0,
    bad_step: int = 0,
    stop: Any = None,
    best_step: int = 0,
    leaves_out: Sequence[int] = (),
) -> tuple[Recorder, FakeStep]:
    recorder, step = Recorder(best_step), FakeStep(bad_step, first_step, leaves_out)
    arguments: Any = (step, None, FakeFeed(), config)
    train(
        *arguments,
        first_step=first_step,
        ranks=OneProcess(),
        evaluation=recorder,
        outputs=recorder,
        stop=(stop or NoStop()).asked,
        guard=Guard(),
    )
    return recorder, step


def test_cadence() -> None:
    recorder, _ = run(Config(num_train_steps=45, steps_per_stats=2, steps_per_external_eval=15, evaluate_epochs=False))
    calls = recorder.calls
    assert [call[1] for call in calls if call[0] == "stats"] == list(range(2, 45, 2))
    assert [call[1:] for call in calls if call[0] == "milestone"] == [
        (0, "ppl", ""),
        (15, "", "bleu"),
        (20, "ppl", ""),
        (30, "", "bleu"),
        (40, "ppl", ""),
    ]  # at 45, the end evaluates
    assert ("stats", 4, "bleu 3.00") in calls
    assert calls[-2:] == [("end", 45), ("close",)]
    assert ("say", "# Finished epoch 2, step 14.") in calls


class Looks:
    """Records the number of steps before each evaluation that it is given, and the kind of evaluation."""

    def __init__(self, step: FakeStep, seen: list[tuple[int, bool, bool]]) -> None:
        self._step, self._seen = step, seen

    def look(self, session: Any, evaluation: Any, ranks: Any, say: Any, *, perplexities: bool, scores: bool) -> None:
        self._seen.append((len(self._step.seeds), perplexities, scores))


def test_what_lowers_the_rate_sees_each_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continued run also passes on the evaluation of the step at which it begins."""
    seen: list[tuple[int, bool, bool]] = []
    monkeypatch.setattr(FakeStep, "decay", property(lambda step: Looks(step, seen)))
    config = Config(num_train_steps=45, steps_per_stats=2, steps_per_external_eval=15, evaluate_epochs=False)
    run(config)
    assert seen == [(0, False, False), (15, False, True), (20, True, False), (30, False, True), (40, True, False)]
    seen.clear()
    run(config, first_step=30)
    assert seen == [(0, False, True), (10, True, False)]


def test_updates_that_were_left_out_count_as_steps() -> None:
    """Left-out updates do not shift later statistics and the end, also in a continued run."""
    recorder, _ = run(
        Config(num_train_steps=8, steps_per_stats=2, steps_per_external_eval=4, evaluate_epochs=False),
        first_step=2,
        leaves_out=(1, 3, 5, 6),
    )
    found = [call[1] for call in recorder.calls if call[0] == "stats"]
    assert found == [4, 6, 8]
    assert recorder.calls[-2:] == [("end", 8), ("close",)]


def test_an_update_that_is_missing_is_an_error() -> None:
    step = FakeStep(leaves_out=(3,))
    step.leaves_out = False
    arguments: Any = (
        step,
        None,
        FakeFeed(),
        Config(num_train_steps=8, steps_per_stats=2, steps_per_external_eval=4, evaluate_epochs=False),
    )
    silent: Any = {"evaluation": Evaluation(), "outputs": RunOutputs(), "stop": NoStop().asked, "guard": Guard()}
    with pytest.raises(RuntimeError, match="rank 0 has done update 2 where 3 was due"):
        train(*arguments, first_step=0, ranks=OneProcess(), **silent)


def test_figures_are_those_of_updates() -> None:
    window = Window(OneProcess())
    window.add(StepResult(float("nan"), 10, 8, float("inf"), 1.0, 0.5, 1, left_out=True), 4, 1.0)
    nothing = window.stats()
    assert np.isnan(nothing.perplexity) and np.isnan(nothing.grad_norm) and nothing.step_seconds == 1.0
    window.add(StepResult(20.0, 10, 8, 2.0, 1.5, 0.5, 2), 4, 1.0)
    stats = window.stats()
    assert (stats.perplexity, stats.grad_norm, stats.loss) == (pytest.approx(np.exp(2)), 2.0, 5.0)


def test_epochs_are_evaluated_too() -> None:
    recorder, _ = run(Config(num_train_steps=20, steps_per_stats=5, steps_per_external_eval=10))
    assert [call[1:] for call in recorder.calls if call[0] == "milestone"] == [
        (0, "ppl", ""),
        (7, "", "bleu"),
        (10, "", "bleu"),  # at its usual step
        (14, "", "bleu"),
    ]


def test_asked_to_stop_it_saves_and_ends() -> None:
    config = Config(num_train_steps=20, steps_per_stats=5, steps_per_external_eval=4)
    recorder, step = run(config, stop=StopAfter(4))
    assert len(step.seeds) == 4
    assert recorder.calls[-3:] == [
        ("save", 4),
        ("say", "# Asked to stop: saved after step 4; the same command continues from there."),
        ("close",),
    ]
    recorder, _ = run(config, stop=StopAfter(20))  # where training ends anyway
    assert recorder.calls[-2:] == [("end", 20), ("close",)]


def test_weights_that_broke_are_not_saved_when_asked_to_stop() -> None:
    with pytest.raises(CollectiveError, match="diverged"):
        run(
            Config(num_train_steps=20, steps_per_stats=5, steps_per_external_eval=20, evaluate_epochs=False),
            bad_step=3,
            stop=StopAfter(3),
        )


def test_early_stopping() -> None:
    config = Config(
        num_train_steps=40,
        steps_per_stats=5,
        steps_per_external_eval=4,
        evaluate_epochs=False,
        early_stopping_patience=2,
    )
    recorder, step = run(config, best_step=8)
    assert len(step.seeds) == 16
    assert ("say", "# Stopping early after step 16: the best score on dev is that of step 8.") in recorder.calls
    assert recorder.calls[-2:] == [("end", 16), ("close",)]
    again, step = run(config, first_step=16, best_step=8)
    assert not step.seeds and again.calls[-3:] == recorder.calls[-3:]
    _, step = run(config, first_step=17, best_step=8)  # no step whose scores decide
    assert len(step.seeds) == 3


def test_a_milestone_for_both_is_one() -> None:
    recorder, _ = run(Config(num_train_steps=25, steps_per_stats=1, steps_per_external_eval=20))
    assert ("milestone", 20, "ppl", "bleu") in recorder.calls


def test_a_run_that_continues_does_at_each_step_what_the_whole_one_does() -> None:
    recorder, step = run(Config(num_train_steps=25, steps_per_stats=2, steps_per_external_eval=5), first_step=13)
    assert recorder.calls[0] == ("milestone", 13, "ppl", "")
    assert [call[1] for call in recorder.calls if call[0] == "stats"] == [14, 16, 18, 20, 22, 24]
    all_calls, whole = run(Config(num_train_steps=25, steps_per_stats=2, steps_per_external_eval=5))
    assert recorder.calls[1:] == all_calls.calls[-len(recorder.calls) + 1 :]
    assert step.seeds == whole.seeds[13:]
    assert len(set(whole.seeds)) == 25


def test_nothing_left_to_do() -> None:
    recorder, _ = run(Config(num_train_steps=5, steps_per_stats=2, steps_per_external_eval=5), first_step=5)
    assert [call[0] for call in recorder.calls] == ["say", "end", "close"]


@pytest.mark.parametrize("bad_step", [3, 14, 15])
def test_broken_weights_are_not_saved(bad_step: int) -> None:
    config = Config(num_train_steps=15, steps_per_stats=10, steps_per_external_eval=4)
    with pytest.raises(CollectiveError, match="diverged") as error:
        run(config, bad_step=bad_step)
    assert error.value.is_mine
    recorder = Recorder()
    step: Any = FakeStep(bad_step)
    feed: Any = FakeFeed()
    with pytest.raises(CollectiveError):
        train(
            step, None, feed, config, first_step=0, ranks=OneProcess(),
            evaluation=recorder, outputs=recorder, stop=NoStop().asked, guard=Guard(),
        )  # fmt: skip
    saved = [call[1] for call in recorder.calls if call[0] in ("milestone", "end")]
    assert all(step < bad_step for step in saved)


def test_figures_are_of_all_ranks() -> None:
    class Three(OneProcess):
        size = 3

        def sum(self, value: np.ndarray) -> np.ndarray:
            return 3 * value

    window = Window(Three())
    for step in (1, 2):
        window.add(StepResult(20.0, 10, 8, 2.0, 1.0 * step, 0.5, step), sentences=4.0, seconds=0.5)
    stats = window.stats()
    assert stats.perplexity == pytest.approx(np.exp(2.0))
    assert stats.words_per_second == pytest.approx(2 * 3 * 18 / 1.0)
    assert (stats.step, stats.step_seconds, stats.grad_norm, stats.loss) == (2, 0.5, 2.0, 5.0)
    assert stats.clipped_norm == 1.5


def test_memory_that_does_not_suffice_is_told_with_the_batch() -> None:
    class Greedy(FakeStep):
        def run(self, session: Any, batch: Any, seed: np.ndarray) -> StepResult:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9]")

    class Wide(FakeFeed):
        def batch(self, step: int, part: int = 0) -> Any:
            return SimpleNamespace(source=np.zeros([3000, 64, 50]), target_in=np.zeros([7, 64]), sentences_per_rank=64)

    step: Any = Greedy()
    feed: Any = Wide()
    recorder = Recorder()
    told = (
        r"step 1 \(OOM when .*\): 64 sentences on this rank, padded to 3000 source and 7 target tokens. Lower --batch"
    )
    with pytest.raises(InputError, match=told):
        train(
            step, None, feed, NINE, first_step=0, ranks=OneProcess(),
            evaluation=recorder, outputs=recorder, stop=NoStop().asked, guard=Guard(),
        )  # fmt: skip


def test_an_update_too_many_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="rank 0 has done update 6 where 4 was due"):
        step: Any = FakeStep(first_step=5)
        feed: Any = FakeFeed()
        recorder = Recorder()
        train(
            step, None, feed, NINE, first_step=3, ranks=OneProcess(),
            evaluation=recorder, outputs=recorder, stop=NoStop().asked, guard=Guard(),
        )  # fmt: skip


def test_more_logits_than_their_numbers_reach_are_told() -> None:
    source = np.zeros([3, 2])
    with (
        pytest.raises(InputError, match=r"^step 1: .*must be less than 2\*\*31: take smaller batches .*4294967296"),
        tf.Graph().as_default(),
        tf.compat.v1.Session() as session,
        memory_for("step 1", source, None, ""),
    ):
        session.run(flat_places(tf.constant([[0, 0]]), tf.constant([2**20, 2**12])))
    with pytest.raises(tf.errors.InvalidArgumentError), memory_for("step 1", source, None, ""):
        raise tf.errors.InvalidArgumentError(None, None, "another mistake")
