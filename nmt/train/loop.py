"""The training loop: training steps, and between them statistics, evaluations and checkpoints.

All ranks do the same steps and take the same decisions, which they base on sums over all ranks. Work for one rank only
is inside the objects that the loop gets, such as `Evaluation` and `RunOutputs`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nmt.core.ranks import Ranks
from nmt.model.session import memory_for
from nmt.options.config import Config
from nmt.reporting.outputs import RunOutputs, Stats
from nmt.scoring.perplexity import perplexity
from nmt.train.divergence import CAUSES, DivergedError, Guard
from nmt.train.evaluation import Evaluation
from nmt.train.prefetch import Batches
from nmt.train.step import StepResult, TrainStep, dropout_seed

_HOPELESS_PERPLEXITY = 1e20


class Window:
    """Totals of the steps since the last statistics."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.clear()

    def clear(self) -> None:
        """Reset the totals."""
        # loss, target words, source words, gradient norms, clipped norms, sentences, updates
        self._totals = np.zeros(7)
        self._seconds = 0.0
        self._steps = 0
        self._last: StepResult | None = None

    def add(self, result: StepResult, sentences: float, seconds: float) -> None:
        """Add a step of this rank."""
        if not result.left_out:
            self._totals += [
                result.loss_sum,
                result.target_words,
                result.source_words,
                result.grad_norm,
                result.clipped_norm,
                sentences,
                1,
            ]
        self._seconds += seconds
        self._steps += 1
        self._last = result

    def stats(self) -> Stats:
        """Return the statistics of all ranks.

        Collective: every rank calls.

        Raises:
            DivergedError: on every rank, if training has diverged.
        """
        if self._last is None:
            raise ValueError("no step since the last statistics")
        loss, target_words, source_words, norms, clipped, sentences, updates = self._ranks.sum(self._totals).tolist()
        if not updates:  # all updates were skipped for overflow
            none = {"perplexity": math.nan, "grad_norm": math.nan, "clipped_norm": math.nan, "loss": math.nan}
            return Stats(self._last.global_step, self._last.learning_rate, self._seconds / self._steps, **none)
        stats = Stats(
            step=self._last.global_step,
            learning_rate=self._last.learning_rate,
            step_seconds=self._seconds / self._steps,
            words_per_second=(source_words + target_words) / self._seconds,
            perplexity=perplexity(loss, target_words),
            grad_norm=norms / updates,
            clipped_norm=clipped / updates,
            loss=loss / sentences,
        )
        if not (stats.perplexity <= _HOPELESS_PERPLEXITY and math.isfinite(stats.grad_norm)):
            raise DivergedError(
                f"training diverged by step {stats.step}: perplexity {stats.perplexity:g}, gradient norm "
                f"{stats.grad_norm:g}. These weights are not saved: the same command continues from the last "
                f"checkpoint; {CAUSES}",
                self._ranks.rank == 0,
                stats.step - self._steps,
                stats.step,
            )
        return stats


@contextlib.contextmanager
def _log_pause(outputs: RunOutputs, step: int) -> Iterator[None]:
    """Log the duration of the block after a step, during which training stands still."""
    started = time.perf_counter()
    yield
    outputs.stood_still(step, time.perf_counter() - started)


def _is_over(step: int, config: Config, evaluation: Evaluation, outputs: RunOutputs, ranks: Ranks) -> bool:
    """Return whether early stopping ends training: no better score for too long, this step included."""
    if not config.early_stopping_patience:
        return False
    patience = config.early_stopping_patience * config.external_eval_interval
    over = ranks.broadcast(step - evaluation.best_step() >= patience)
    if over:
        outputs.say(
            f"# Stopping early after step {step}: the best score on dev is that of step {evaluation.best_step()}."
        )
    return over


def _step(step: TrainStep, session: Any, feed: Batches, done: int, seed: int, ranks: Ranks) -> tuple[StepResult, float]:
    """Run the step after `done` steps, batch by batch; return its result and this rank's number of sentences."""
    results, sentences = [], 0.0
    for part in range(feed.parts):
        batch = feed.batch(done, part)
        with memory_for(
            f"step {done + 1}", batch.source, batch.target_in, "--batch_size, --src_max_len, --tgt_max_len"
        ):
            # Each part is a virtual rank with random numbers of its own.
            results.append(step.run(session, batch, dropout_seed(seed, ranks.rank + part * ranks.size, done)))
        sentences += batch.sentences_per_rank
    together = results[-1]._replace(
        loss_sum=sum(one.loss_sum for one in results),
        target_words=sum(one.target_words for one in results),
        source_words=sum(one.source_words for one in results),
    )
    return together, sentences


def train(
    step: TrainStep,
    session: Any,
    feed: Batches,
    config: Config,
    *,
    first_step: int,
    ranks: Ranks,
    evaluation: Evaluation,
    outputs: RunOutputs,
    stop: Callable[[], bool],
    guard: Guard,
) -> None:
    """Train from `first_step` to the last step, with all statistics and evaluations that are due.

    After `stop` has returned True, the function writes a checkpoint and returns. With local SGD, it ends the current
    block before an evaluation or a checkpoint.

    Collective: every rank calls, with the same options and first step.

    Raises:
        DivergedError: on every rank, if training has diverged.
        RateTooHighError: on every rank, if a trial of the learning rate is over.
        InputError: on one rank, if its memory does not suffice, or a file cannot be written.
    """
    window = Window(ranks)
    stats = Stats(first_step)
    over = False
    if first_step >= config.num_train_steps:
        # The last step is evaluated again: the run may have been killed during its evaluation.
        outputs.say(f"# Step {first_step} is done and no step is left: raise --num_train_steps to train further.")
    else:
        scored = first_step > 0 and config.scores_due(first_step, feed.epoch_ended(first_step) > 0)
        with _log_pause(outputs, first_step):
            evaluation.milestone(session, first_step, perplexities=True, scores=scored)
        due = first_step > 0 and config.perplexities_due(first_step)
        if step.decay:
            step.decay.look(session, evaluation, ranks, outputs.say, perplexities=due, scores=scored)
        over = scored and _is_over(first_step, config, evaluation, outputs, ranks)
    now = first_step
    left_out = ranks.broadcast(max(0, first_step - step.updates(session)))  # so far only rank 0 has restored variables
    while now < config.num_train_steps and not over:
        started = time.perf_counter()
        result, sentences = _step(step, session, feed, now, int(config.random_seed or 0), ranks)
        seconds = time.perf_counter() - started
        now += 1
        if step.leaves_out and now - result.global_step == left_out + 1:
            result, left_out = result._replace(left_out=True), left_out + 1
        if now - result.global_step != left_out:
            raise RuntimeError(f"rank {ranks.rank} has done update {result.global_step} where {now - left_out} was due")
        result = result._replace(global_step=now)
        window.add(result, sentences, seconds)
        guard.see(result)
        outputs.stepped(now)
        at_end = now == config.num_train_steps  # `evaluation.end` evaluates everything
        epoch = feed.epoch_ended(now)
        stats_due = config.stats_due(now)
        eval_due = not at_end and config.perplexities_due(now)
        external_due = not at_end and config.scores_due(now, epoch > 0)
        asked = stop()
        if stats_due or eval_due or external_due or at_end or asked:
            stats = window.stats()  # raises before diverged weights are saved
        if eval_due or external_due or at_end or asked:
            ranks.end_block()
        if stats_due:
            outputs.stats(stats, evaluation.best)
            window.clear()
        if epoch:
            outputs.say(f"# Finished epoch {epoch}, step {now}.")
        if asked and not at_end:
            evaluation.save(session, now)
            outputs.say(f"# Asked to stop: saved after step {now}; the same command continues from there.")
            ranks.barrier()
            outputs.close()
            return
        if eval_due or external_due:
            with _log_pause(outputs, now):
                evaluation.milestone(session, now, perplexities=eval_due, scores=external_due)
            if step.decay:
                step.decay.look(session, evaluation, ranks, outputs.say, perplexities=eval_due, scores=external_due)
        over = external_due and _is_over(now, config, evaluation, outputs, ranks)
    evaluation.end(session, stats)
    ranks.barrier()  # the other ranks wait for the end of the evaluation
    outputs.close()
