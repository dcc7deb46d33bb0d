"""Mutants: leaves out one hook or one divisor after the other, and shows which tests fail then.

    python -m tests.mutants [part of a mutant's name ...] [--list]

Each mutant is a copy of the checkout in which one statement is replaced. The tests of its row must fail; a mutant that
survives is a gap in the tests. All mutants take twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 600
_TWO = ["tests/multirank/test_two_ranks.py", "tests/law"]
_SETTINGS = {"TFDIST_STALL_SECONDS": "5", "TFDIST_STALL_ABORT_SECONDS": "20"}  # a mutant may let a rank wait


class Mutant(NamedTuple):
    """A change of one file, and the tests that must fail.

    Attributes:
        name: description of the change.
        path: file below ``tfdist``.
        old: text of the smallest statement to leave out; or text to replace.
        tests: expression of pytest's ``-k`` for the cases on two ranks; or a test's path.
        new: replacement for ``old`` inside its line; None leaves the whole statement out.
        every_case: whether the tests need ``--every-case``.
    """

    name: str
    path: str
    old: str
    tests: str
    new: str | None = None
    every_case: bool = False


def _hook(name: str, path: str, old: str, tests: str, every_case: bool = False) -> Mutant:
    return Mutant(f"no hook of {name}", f"hooks/{path}.py", old, tests, every_case=every_case)


MUTANTS = (
    _hook("TensorFlow's apply_gradients", "optimizers", "in_tree(tf_optimizer.Optimizer", "cases_law"),
    _hook("Keras's apply", "optimizers", 'keras, in_tree, "apply"', "cases_keywords"),
    _hook("Keras's build", "optimizers", 'keras, in_tree, "build"', "cases_local_sgd or cases_loss_scale"),
    _hook(
        "tf_keras's optimizers", "optimizers", '"tf_keras.src.optimizers.optimizer:', "cases_keywords or fit_tf_keras"
    ),
    _hook("tf_keras's legacy optimizers", "optimizers", "legacy.optimizer_v2", "cases_keywords"),
    Mutant(
        "optimizers' variables are not shared",
        "hooks/optimizers.py",
        'share_new("the building of an optimizer")',
        "cases_keras or cases_restored or cases_replicas",
    ),
    _hook("variables_initializer", "sessions", '"variables_initializer"', "cases_variables"),
    _hook("session.run", "sessions", 'replace(base, "run"', "cases_variables or cases_law"),
    _hook("make_callable", "sessions", '"make_callable"', "cases_local_sgd or cases_replicas or cases_writes"),
    _hook("Keras's callables", "sessions", '"_make_callable_from_options"', "callable_from_options"),
    _hook(
        "monitored sessions",
        "sessions",
        'ChiefSessionCreator, "create_session"',
        "monitored_sessions_of_other",
    ),
    _hook("workers' sessions", "sessions", 'WorkerSessionCreator, "create_session"', "a_session_of_a_worker"),
    _hook("a monitored session's end", "sessions", '"_close_internal"', "cases_local_sgd"),
    _hook("tf.gradients", "gradients", '"_GradientsHelper"', "cases_law"),
    _hook("tape.gradient", "gradients", 'GradientTape, "gradient"', "cases_programs"),
    _hook("tape.jacobian", "gradients", 'GradientTape, "jacobian"', "newton or each_example"),
    _hook("tf.hessians", "gradients", '"hessians", hessians', "newton_by_hessians"),
    _hook("a tape's or accumulator's beginning", "gradients", 'kind, "__enter__"', "forward_gradient or hessian_by"),
    _hook("jvp", "gradients", 'ForwardAccumulator, "jvp"', "forward"),
    _hook("a function's call", "functions", "patches.replace(\n        concrete_function", "cases_programs"),
    _hook("operations that write", "functions", '"_create_op_internal"', "cases_writes or cases_programs"),
    _hook("conditions", "functions", 'replace(cond_v2, "cond_v2"', "under_a_condition"),
    _hook("restored variables", "functions", '"shape_safe_assign_variable_handle"', "cases_restored or cases_writes"),
    _hook("fit", "keras_fit", 'owner, "fit", fit.fit', "cases_keras"),
    _hook(
        "make_train_function",
        "keras_fit",
        'owner, "make_train_function", fit.',
        "law.fit",
    ),
    _hook(
        "tf_keras's make_train_function",
        "keras_fit",
        'owner, "make_train_function", make_train',
        "compiled_training",
        True,
    ),
    _hook("stop_training", "keras_fit", 'assign(owner, "stop_training"', "cases_keras or cases_stop or cases_replicas"),
    _hook("the epoch's iterator", "keras_fit", "TFEpochIterator", "uneven or cases_keras or cases_replicas"),
    _hook("adapt", "keras_fit", 'replace_in_tree, "adapt"', "layers_that_were_adapted"),
    _hook("synchronised batch normalisation", "batch_normalization", '"_compute_moments_sync"', "cases_batch"),
    _hook("moments with a mask", "batch_normalization", 'patches.replace, "_moments"', "cases_batch"),
    _hook("Saver.save", "session_saves", 'saver.Saver, "save"', "cases_local_sgd or cases_int8 or cases_saves"),
    _hook("Saver.restore", "checkpoints", 'saver.Saver, "restore"', "cases_local_sgd or cases_loss_scale"),
    _hook("moving averages", "moving_averages", 'ExponentialMovingAverage, "apply"', "cases_accumulation"),
    _hook(
        "os._exit",
        "exits",
        'replace(os, "_exit"',
        "tests/tfdist/test_saves.py -k ranks_that_are_left",
    ),
    Mutant("no divisor of sums", "engine/all_reduce.py", "max(1, len(context.present))", "cases_law", "1"),
    Mutant("no divisor of sums in the graph", "engine/arrival.py", "1 / divisor", "cases_toy_exchange", "1.0"),
    Mutant(
        "no divisor of rows",
        "engine/sparse_rows.py",
        "reduce_ops.scale(total, divisor)",
        "cases_engine or cases_law or cases_keras",
    ),
    Mutant(
        "no divisor of rows in mapped memory",
        "engine/_mapped_rows.py",
        "reduce_ops.scale(sums, divisor)",
        "cases_engine or cases_law or cases_keras",
    ),
    Mutant(
        "no divisor of sums in a compiled function",
        "graph/graph_exchange.py",
        "1 / group.size",
        "tests/multirank/test_layouts.py -k collectives",
        "1.0",
    ),
    Mutant(
        "tables of each rank are averaged",
        "hooks/gradients.py",
        "marks.refuse_own_tables(flat[0])",
        "tables_that_each",
    ),
    Mutant("DiLoCo has BMUF's defaults", "core/settings.py", 'self.sync == "diloco"', "diloco", new="False"),
    Mutant(
        "rounding errors stay",
        "updates/_block_end.py",
        "own + lost.get(n, 0)",
        "tests/multirank/test_layouts.py -k streamed_blocks",
        new="own",
    ),
    Mutant(
        "what is in flight is dropped",
        "updates/_block_end.py",
        "if state.in_flight is not None",
        "cases_streamed",
        new="if False",
    ),
    Mutant(
        "a request to stop is heard early",
        "engine/collective.py",
        "if not self.deferred:",
        "heard_after_the_same",
        new="if True:",
    ),
    Mutant(
        "an optimizer's open block goes with it",
        "updates/local_sgd.py",
        "in there or value(s.position) > 0",
        "cases_local_sgd",
        new="in there or False",
    ),
    Mutant("open blocks are not compared", "updates/local_sgd.py", "agreement.agree(job.world", "cases_block_ends"),
    Mutant(
        "starts of blocks are not compared",
        "replicas/check.py",
        "if setting == OFF:",
        "cases_block_ends",
        new="if setting == OFF or blocks:",
    ),
    Mutant(
        "only one session's blocks end",
        "updates/local_sgd.py",
        "*self._steps.sessions.that_trained()",
        "cases_block_ends",
        new="*self._steps.sessions.that_trained()[:1]",
    ),
    Mutant(
        "a call goes on where a block is due", "updates/_local_sgd_step.py", "if reached != [position]", "local_sgd"
    ),
    Mutant("moving averages stay", "updates/_block_end.py", ", *state.moving", "cases_block_ends", new=""),
    Mutant(
        "Keras's moving averages stay", "updates/_local_sgd_step.py", "state.statistics += map(", "cases_block_ends"
    ),
    Mutant("garbage is a difference", "updates/local_sgd.py", "gc.collect()", "cases_block_ends", new="pass"),
    Mutant("a state of other blocks is loaded as it is", "hooks/checkpoints.py", '"load_own_variables"', "block_ends"),
    Mutant("a scale is ignored", "updates/bmuf.py", "if settings.block_scale:", "diloco", new="if False:"),
    Mutant(
        "hosts that come late are given up",
        "launch/attempts.py",
        "not all(answer.passes for answer in late.values())",
        "tests/tfdist/launch/test_run.py -k late",
        new="True",
    ),
    Mutant(
        "the import starts the doctor's job",
        "__init__.py",
        "if not runs_own_program():",
        "tests/tfdist/doctor/test_report.py -k mended",
        new="if True:",
    ),
)


def mutated(text: str, mutant: Mutant) -> str:
    """Return a file's text with the mutant's change at each place."""
    if mutant.old not in text:
        raise ValueError(f"{mutant.path} has no {mutant.old!r} any more: change the mutant {mutant.name!r}")
    if mutant.new is not None:
        return text.replace(mutant.old, mutant.new)
    lines = text.splitlines()
    for statement in reversed(list(_smallest(ast.parse(text), text, mutant.old))):
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        lines[first:last] = [" " * statement.col_offset + "pass"]
    return "\n".join(lines) + "\n"


def _smallest(tree: ast.AST, text: str, part: str) -> Iterator[ast.stmt]:
    """Yield the statements whose source has the part, and that have no smaller such statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and part in (ast.get_source_segment(text, node) or ""):
            inner = [n for n in ast.walk(node) if isinstance(n, ast.stmt) and n is not node]
            if not any(part in (ast.get_source_segment(text, n) or "") for n in inner):
                yield node


def failures(mutant: Mutant, copy: Path) -> str:
    """Run the mutant's tests in a copy of the checkout, and return pytest's last line."""
    path = copy / "tfdist" / mutant.path
    original = path.read_text()
    selected = mutant.tests.split() if mutant.tests.startswith("tests/") else [*_TWO, "-k", mutant.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected]
    command += ["--every-case"] if mutant.every_case else []
    variables = {**os.environ, **_SETTINGS, "PYTHONPATH": str(copy), "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        path.write_text(mutated(original, mutant))
        done = subprocess.run(
            command, cwd=copy, env=variables, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not ended after {TIMEOUT_SECONDS} s"
    finally:
        path.write_text(original)
    return (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")


def main() -> None:
    """Try the chosen mutants, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the names of the mutants to try")
    parser.add_argument("--list", action="store_true", help="only check that each mutant's text is there")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(part in m.name for part in options.names)]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy.mkdir()
        for name in ("tfdist", "nmt", "tests", "scripts"):
            shutil.copytree(ROOT / name, copy / name)
        for name in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, copy)
        for mutant in chosen:
            if options.list:
                mutated((copy / "tfdist" / mutant.path).read_text(), mutant)
                continue
            start = time.monotonic()
            found = failures(mutant, copy)
            caught = "failed" in found or "not ended" in found or "error" in found
            survived += not caught
            print(f"| {mutant.name} | {'caught' if caught else '**survived**'} | {found} |", flush=True)
            print(f"  {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{len(chosen)} mutants" + ("" if options.list else f", {survived} survived"))
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
