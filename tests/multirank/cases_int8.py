"""int8 gradients between machines: what rounding loses in one step is added in the next."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import refusal
from tests.multirank.inside import everywhere, mapped, nodes, settings, through_mpi
from tests.multirank.oracle import each, v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
SHAPES = ([300, 70], [5], [7000])  # larger than what travels with the ranks' arrival
STEPS = 100


def gradient(step: int, rank: int) -> list[np.ndarray]:
    """Return a rank's gradients in a step, with large and small entries that differ on each rank."""
    random = np.random.RandomState(1000 * rank + step)
    return [(random.randn(*shape) * np.exp(random.randn(*shape))).astype(np.float32) for shape in SHAPES]


def in_a_session() -> list[list[np.ndarray]]:
    """Return the averages of each step."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(f"w{n}", shape) for n, shape in enumerate(SHAPES)]
        given = [v1.placeholder(tf.float32, shape) for shape in SHAPES]
        loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(variables, given, strict=True)])
        gradients = tf.gradients(loss, variables)
        update = v1.train.GradientDescentOptimizer(0.0).apply_gradients(zip(gradients, variables, strict=True))
        session.run(v1.global_variables_initializer())
        feeds = (dict(zip(given, gradient(step, RANK), strict=True)) for step in range(STEPS))
        return [session.run([gradients, update], feed)[0] for feed in feeds]


def in_a_function() -> list[list[np.ndarray]]:
    variables, optimizer = [tf.Variable(tf.zeros(shape)) for shape in SHAPES], keras.optimizers.SGD(1.0)

    @tf.function
    def step(*given: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(variables, given, strict=True)])
        optimizer.apply(tape.gradient(loss, variables), variables)

    found, before = [], [v.numpy() for v in variables]
    for number in range(STEPS):
        step(*gradient(number, RANK))
        found.append([b - v.numpy() for b, v in zip(before, variables, strict=True)])
        before = [v.numpy() for v in variables]
    return found


def case_the_sum_of_all_steps_is_that_of_the_gradients() -> None:
    """They are equal within the rounding of one step, and all ranks have the same bits."""
    true = [[np.mean(one, 0) for one in zip(*(gradient(s, r) for r in range(SIZE)), strict=True)] for s in range(STEPS)]
    totals = [np.sum(one, 0, dtype=np.float64) for one in zip(*true, strict=True)]
    largest = [
        max(np.abs(g).max() for s in range(STEPS) for r in range(SIZE) for g in [gradient(s, r)[n]]) for n in range(3)
    ]
    for choice, run in each((mapped(), through_mpi()), (in_a_session, in_a_function)):
        with subtest(choice, run), settings(choice):
            tfdist.configure(compression="int8", bucket_mb=64)
            found = run()
            assert all(
                np.array_equal(a, b) for other in everywhere(found[-1]) for a, b in zip(other, found[-1], strict=True)
            )
            sums = [np.sum(one, 0, dtype=np.float64) for one in zip(*found, strict=True)]
            for total, one, most in zip(totals, sums, largest, strict=True):
                # Each node's rounding and the sum's: half a step of 127, of the values with what was left over.
                assert np.abs(total - one).max() <= 2.5 * most / 254 + 1e-3, np.abs(total - one).max()
            inexact = max(np.abs(a - b).max() for a, b in zip(true[0], found[0], strict=True))
            assert (inexact > 1e-4) == (nodes() > 1), inexact


def case_what_is_not_finite_is_gone_with_its_step() -> None:
    """Its block is not finite on all ranks; the next step's averages are correct again."""
    w, optimizer = tf.Variable(tf.zeros([100, 330])), keras.optimizers.SGD(1.0)
    b = tf.Variable(tf.zeros([5]))  # the elements behind it in a buffer belong to no variable

    @tf.function
    def step(value: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * (RANK + 1.0) + tf.reduce_sum(b) * value
        gradients = tape.gradient(loss, [w, b])
        optimizer.apply(gradients, [w, b])
        return gradients

    for choice in (mapped(), through_mpi()):
        with subtest(choice), settings(choice):
            tfdist.configure(compression="int8", bucket_mb=64)
            for value in (1.0, np.inf if RANK == SIZE - 1 else 1.0, 1.0, 1.0):
                found = step(tf.constant(value, tf.float32))[1].numpy()
                bad = any(np.isinf(one) for one in everywhere(value))
                assert np.isfinite(found).all() != bad, (value, found)
            np.testing.assert_allclose(found, 1, atol=0.05)


class Program:
    """A program in a session; each step adds the averages of the gradients above to its variables."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph:
            variables = [
                v1.get_variable(f"w{n}", shape, initializer=tf.zeros_initializer) for n, shape in enumerate(SHAPES)
            ]
            self.given = [v1.placeholder(tf.float32, shape) for shape in SHAPES]
            loss = -tf.add_n([tf.reduce_sum(w * g) for w, g in zip(variables, self.given, strict=True)])
            self.update = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
            self.variables, self.saver = variables, v1.train.Saver()
            self.session = v1.Session(graph=graph)
            self.session.run(v1.global_variables_initializer())

    def train(self, steps: range) -> list[np.ndarray]:
        """Run the steps and return the sums of all averages so far."""
        for step in steps:
            self.session.run(self.update, dict(zip(self.given, gradient(step, RANK), strict=True)))
        return self.session.run(self.variables)

    def saved(self, path: str) -> None:
        """Save a checkpoint, on rank 0 only."""
        with self.session.graph.as_default():
            _ = RANK or self.saver.save(self.session, path)

    def restored(self, path: str) -> None:
        """Restore a checkpoint, on rank 0 only."""
        with self.session.graph.as_default():
            _ = RANK or self.saver.restore(self.session, path)


def case_a_checkpoint_has_what_is_left_over_of_all_ranks() -> None:
    """Rank 0 restores it in a new program, which continues bit for bit."""
    first, then = range(5), range(5, 9)
    true = [np.sum([np.mean([gradient(s, r)[n] for r in range(SIZE)], 0) for s in first], 0) for n in range(3)]
    for choice in (mapped(), through_mpi()):
        with subtest(choice), settings(choice), tempfile.TemporaryDirectory() as folder:
            tfdist.configure(compression="int8", bucket_mb=0.1)
            path = str(Path(folder) / "c")
            program, again = Program(), Program()
            reached = program.train(first)
            tfdist.end_block()
            program.saved(path)
            if RANK == 0:
                left_over = np.split(tf.train.load_variable(path, "int8_feedback"), [21000, 21005])
                for wanted, sums, left in zip(true, reached, left_over, strict=True):
                    np.testing.assert_allclose(-left, (wanted - sums).reshape(-1), atol=2e-5)
                assert any(np.abs(left).max() > 1e-4 for left in left_over) == (nodes() > 1)
                kept = [v for v in program.session.graph.get_collection("variables") if "int8_feedback" in v.name]
                assert kept and not program.session.run(kept[0]).any()  # else the next meeting would send it again
            straight = program.train(then)
            again.restored(path)
            for one, other in zip(straight, again.train(then), strict=True):
                np.testing.assert_array_equal(one, other)
            program.saved(path)  # without end_block the rest on the other ranks is unknown
            assert RANK or not tf.train.load_variable(path, "int8_feedback").any()


def case_a_checkpoint_from_before_int8() -> None:
    with settings(), tempfile.TemporaryDirectory() as folder:
        Program().saved(f"{folder}/c")
        tfdist.configure(compression="int8")
        now = Program()
        told = "" if RANK else refusal(lambda: now.restored(f"{folder}/c"))
    assert RANK or "with TFDIST_COMPRESSION another one, or by one process; it is 'int8' now" in told, told
