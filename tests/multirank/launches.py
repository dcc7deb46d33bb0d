"""Launches of the multi-rank cases: number of ranks, settings and cases of each launch, and functions that run them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Hosts
from tests.launch import ROOT, Finished, mpirun

# Only a rank that computes forever reaches this limit: a wait for another rank times out much earlier.
TIMEOUT_SECONDS = 3600
# If other jobs use the processors too, Keras's tracing of a training step has taken one rank a minute.
_ABORT_SECONDS = "150"
_ENDED_JOBS = 5  # per launch: if more jobs end early, something is wrong with all cases
LOGS = ROOT / "build" / "test-logs"  # full output of failed jobs


@dataclasses.dataclass(frozen=True)
class Launch:
    """One job that runs many cases.

    Attributes:
      name: part of the tests' names.
      ranks: number of ranks.
      wanted: beginnings of the names of its cases.
      long: beginnings of the names of slow cases that other launches cover; only ``--every-case`` runs them.
      meaningless: beginnings of the names of cases that would assert nothing here.
      settings: TFDIST_... variables in addition to those of all launches.
      more: beginnings of the names of cases that ``--every-case`` adds.
      hosts: ranks on each of several hosts that are made for the launch; empty: this machine.
    """

    name: str
    ranks: int
    wanted: tuple[str, ...]
    long: tuple[str, ...] = ()
    meaningless: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    more: tuple[str, ...] = ()
    hosts: tuple[int, ...] = ()

    def cases(self, full: bool) -> list[str]:
        """Return the names of the cases to run; ``full``: with ``--every-case``."""
        wanted = self.wanted + self.more if full else self.wanted
        left_out = self.meaningless if full else self.meaningless + self.long
        return [name for name in case_names() if name.startswith(wanted) and not name.startswith(left_out)]


def _of(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"cases_{module}.case_{name}" for name in names)


_COLLECTIVES = (("TFDIST_ENGINE", "collectives"),)
_KERAS_2 = (("TF_USE_LEGACY_KERAS", "1"),)  # tf.keras is then tf_keras
_OF_COLLECTIVES = "cases_tensorflow_collectives."  # assert nothing with other engines
# Cases of other engines, which count their operations or read gradients on the host. Joins are refused.
_IN_THE_GRAPH = (
    *_of("variables", "what_is_off"),
    *_of("keras", "equal_data"),
    *_of("saves", "after_ranks_have_joined"),
    *(f"cases_{module}." for module in ("engine", "int8", "nmt")),
)
_TRAINING = tuple(
    f"cases_{module}."
    for module in ("law", "keras", "programs", "variables", "average_loss", "accumulation", "batch_normalization")
)
# Cases whose results other layouts and engines could change.
_ADDING = _of(
    "engine", "every", "pieces", "many", "random", "rows", "non_finite", "large", "groups", "collectives", "join"
)
_SPARSE = _of("engine", "sparse_set")
_SLICES = _of("engine", "every", "random", "rows", "large", "groups", "join")
# Variations of the same mechanisms, which differ in TensorFlow's or Keras's own code, or which tests/nmt covers.
_VARIATIONS = (
    *_of("keras", "variations", "reduced_precision", "embeddings_unmerged"),
    *_of("tf_keras", "mixed"),
    *_of("batch_normalization", "variations", "fit"),
    *_of("accumulation", "variations"),
    *_of("nmt", "nmt_with_variations", "nmt_with_sgd", "nmt_with_pretrained"),
)
# The slowest cases on 2 ranks that similar cases, other launches, or tests/nmt/runs cover too.
_SLOW = (
    *_of(
        "nmt",
        "nmt_drops",
        "nmt_with_adam",
        "nmt_with_accumulated",
        "nmt_goes_back",
        "nmt_shares",
        "nmt_evaluates_and_saves",
        "nmt_with_other_families",
        "nmt_with_tied",
    ),
    *_of("loss_scale", "an_overflow_is_left_out_in_functions", "an_overflow_in_fit", "a_checkpoint"),
    *_of("loss_scale", "an_overflow_among"),
    *_of("keras", "equal", "two_models", "embeddings_are", "a_metric"),
    *_of("tf_keras", "compiled"),
    *_of("batch_normalization", "evaluation"),
    *_of("accumulation", "fit_and", "the_last", "functions", "steps_inside", "sessions_with", "what"),
    *_of("local_sgd", "the_state"),
    *_of("streamed_blocks", "a_checkpoint_in"),
    *_of("derivatives", "contrastive"),
    *_of("writes", "gradients_of"),
    *_of("variables", "aliases"),
    *_of("law", "subclasses"),
    *_of("ddl", "reduced_gradients", "metrics"),
    *_of("engine", "random", "law_with"),
    *_of("apart", "in_fit_of_tf_keras"),
    *_of("larc", "larc_scales"),
    *_of("saves", "ranks_in_groups"),  # needs a third rank
    "cases_int8.",  # no exchange passes between machines
    *_of("streamed_blocks", "few", "the_sum", "rounding"),
)


# Cases whose results the number of ranks could change.
_BY_RANKS = (
    *(f"cases_{module}." for module in ("engine", "law", "values", "variables")),
    *_of("keras", "uneven", "logs"),
    *_of("accumulation", "other_numbers"),
    *_of("loss_scale", "products"),
    *_of("saves", "paths", "ranks_in"),
    *_of("local_sgd", "a_block_that_is_cut_off"),
    *_of("streamed_blocks", "each_step"),
    *_of("ddl", "weighted_gradients_in", "bcast"),
)
_HOROVOD = tuple(f"horovod.cases_{module}." for module in ("collectives", "gradients", "keras"))
_LAUNCHES = (
    # (cases_lifetime covers bounded memory, and engine.law_with_small_buckets many blocks.)
    Launch(
        "2",
        2,
        ("cases_",),
        meaningless=(_OF_COLLECTIVES,),
        long=(*_VARIATIONS, *_SLOW, *_of("engine", "memory", "many")),
    ),
    Launch(
        "3",  # slow on two cores
        3,
        _BY_RANKS,
        # "nodes of two and one" has three ranks, too. The rest depends less on the number of ranks than similar cases.
        long=(
            *_of(
                "engine",
                "memory",
                "many",
                "random",
                "law_with",
                "every",
                "large",
                "rows_are",
                "sparse_settings",
                "join",
            ),
            *_of("engine", "compressed"),
            *_of("law", "clipped", "subclasses", "minimize"),
            *_of("streamed_blocks", "each_step"),
            *_of("variables", "monitored", "aliases", "several", "rank_0_restores", "first_step"),
        ),
        meaningless=(*_of("nmt", "nmt_with"), _OF_COLLECTIVES),  # 64 sentences cannot be divided by 3
        more=("cases_",),
    ),
    Launch("4", 4, (), more=_BY_RANKS),  # "two nodes of two" has four ranks, too
    # One rank exchanges nothing, and tfdist installs no hooks: these are the public calls, and cases for unchanged
    # graphs. But one rank accumulates steps and scales losses as several ranks do.
    Launch(
        "1",
        1,
        (
            "cases_values.",
            *_of("variables", "one_fused", "number_of_nodes", "graphs_without"),
            *_of("programs", "collectives"),
            "cases_accumulation.",
            *_of("loss_scale", "an_overflow_in_fit", "small", "a_checkpoint_has"),
            *_of("ddl", "options", "allreduce_n", "gradients_in", "rows", "bcast"),
        ),
        long=_of(
            "accumulation",
            "variations",
            "sessions",
            "fit_and",
            "steps_inside",
            "rows",
            "two",
            "models",
            "configuring",
            "what",
        ),
        meaningless=(*_of("values", "barrier"), *_of("accumulation", "other_numbers")),
    ),
    Launch(
        "two nodes of two",
        4,
        (*_ADDING, *_of("law", "large", "clipped"), *_of("accumulation", "two", "rows"), "cases_int8."),
        long=(
            *_of("engine", "every", "many", "random", "large", "join"),
            *_of("law", "clipped"),
            *_of("accumulation", "rows"),
            *_of("int8", "the_sum"),
        ),
        settings=(("TFDIST_NODE_SIZE", "2"), ("TFDIST_BUCKET_MB", "0.001")),
        more=(*_SPARSE, "cases_law.", "cases_accumulation."),
    ),
    Launch(
        "nodes of two and one",
        3,
        (*_ADDING, "cases_int8.", *_of("streamed_blocks", "few", "the_sum", "rounding")),
        long=(*_of("engine", "every", "many", "random", "large"), *_of("streamed_blocks", "few")),
        settings=(("TFDIST_NODE_SIZE", "2"),),
        more=(*_SPARSE, "cases_streamed_blocks."),
    ),
    # Some ranks have two shards; there are four shards in all.
    Launch(
        "nodes of three and two",
        5,
        (),
        settings=(("TFDIST_NODE_SIZE", "3"),),
        more=_ADDING + _SLICES + _SPARSE,
    ),
    Launch(
        "through MPI alone",
        2,
        (),  # "every" and "random" run through MPI in all launches
        settings=(("TFDIST_ENGINE", "mpi"),),
        more=_ADDING + _SLICES + _SPARSE,
    ),
    Launch(
        "TensorFlow's collectives, 2",
        2,
        (
            *_of("law", "minimize", "two"),
            *_of("keras", "embeddings_stay"),
            *_of("programs", "a_print"),
            _OF_COLLECTIVES,
        ),
        meaningless=_IN_THE_GRAPH,
        settings=_COLLECTIVES,
        more=("cases_",),
    ),
    Launch(
        "TensorFlow's collectives, 3",
        3,
        (),
        meaningless=_IN_THE_GRAPH,
        settings=_COLLECTIVES,
        more=(*_TRAINING, _OF_COLLECTIVES),
    ),
)
# Horovod's names: in jobs of their own, because tfdist then averages nothing automatically.
HOROVOD = (
    Launch("Horovod's names, 2", 2, _HOROVOD),
    Launch("Horovod's names, 3", 3, (), more=_HOROVOD),
    Launch("Horovod's names, 1", 1, (), more=_HOROVOD),
    Launch(
        "Horovod's names, tf_keras",
        2,
        (),
        more=("horovod.cases_tf_keras.",),
        settings=_KERAS_2,
    ),
)
# The programs of the law. Those of sessions have a job of their own, which switches TensorFlow 2's behaviour off.
_IN_SESSIONS = ("law.graph",)
_OTHERS = ("law.functions", "law.eager", "law.fit")
_OF_KERAS_2 = ("law.fit_tf_keras.", "law.graph_tf_keras.")
_OF_BOTH = ("law.fit.", "law.fit_optimizers.", "law.functions.")
_SOME = ("law.functions.", "law.functions_derivatives.", "law.eager", "law.fit.", "law.fit_steps.")
LAW = (
    Launch("law, 2", 2, _SOME, more=_OTHERS, meaningless=_OF_KERAS_2),
    Launch("law in sessions, 2", 2, _IN_SESSIONS, meaningless=_OF_KERAS_2),
    Launch("law, 3", 3, (), more=_OTHERS, meaningless=_OF_KERAS_2),
    Launch("law in sessions, 3", 3, (), more=_IN_SESSIONS, meaningless=_OF_KERAS_2),
    Launch("law of tf_keras, 2", 2, _OF_KERAS_2[:1], more=_OF_BOTH, settings=_KERAS_2),
    Launch("law of tf_keras, 3", 3, (), more=_OF_KERAS_2[:1], settings=_KERAS_2),
    Launch("law, TensorFlow's collectives, 2", 2, (), more=_OTHERS, meaningless=_OF_KERAS_2, settings=_COLLECTIVES),
    Launch("law of tf_keras in sessions, 2", 2, _OF_KERAS_2[1:], settings=_KERAS_2),
)
_BETWEEN_HOSTS = (
    *_ADDING,
    "cases_int8.",
    *_of("streamed_blocks", "few"),
    *_SPARSE,
    *(f"cases_{module}." for module in ("law", "values", "saves")),
)
_ON_HOSTS = (
    *_BETWEEN_HOSTS,
    *(f"cases_{module}." for module in ("variables", "programs", "keras", "average_loss")),
)
_OF_ONE_MACHINE = _of("values", "local_ranks_and_shares")
# Several hosts: namespaces of this machine, with sshd and a network between them.
HOSTS = (
    Launch(
        "hosts of 1 and 1",
        2,
        (*_of("law", "minimize"), *_of("saves", "machines")),
        more=_of("engine", "every"),
        hosts=(1, 1),
    ),
    Launch(
        "TensorFlow's collectives, hosts of 1 and 1",
        2,
        (),
        meaningless=_IN_THE_GRAPH,
        settings=_COLLECTIVES,
        more=("cases_law.", "cases_keras.", _OF_COLLECTIVES),
        hosts=(1, 1),
    ),
    Launch("hosts of 2 and 2", 4, (), meaningless=_OF_ONE_MACHINE, more=_ON_HOSTS, hosts=(2, 2)),
    Launch("hosts of 2 and 1", 3, (), meaningless=_OF_ONE_MACHINE, more=_BETWEEN_HOSTS, hosts=(2, 1)),
    Launch("hosts of 1, 1 and 1", 3, (), meaningless=_OF_ONE_MACHINE, more=_BETWEEN_HOSTS, hosts=(1, 1, 1)),
    Launch("Horovod's names, hosts of 1 and 1", 2, (), more=_HOROVOD, hosts=(1, 1)),
)
# Packages on top of TensorFlow, each with the Keras it is written for. Each has its own job, so that the end of one job
# does not end all. They are installed in an environment of their own.
_PACKAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "transformers": _KERAS_2,
    "tensorflow_probability": _KERAS_2,
    "tensorflow_recommenders": _KERAS_2,
    "gpflow": _KERAS_2,
    "sonnet": (),
    "keras_hub": (),
    "keras_tuner": (),
}
PACKAGES = tuple(
    Launch(package, 2, (f"ecosystem.cases_{package}.",), settings=settings) for package, settings in _PACKAGES.items()
)
LAUNCHES = {launch.name: launch for launch in (*_LAUNCHES, *HOROVOD, *LAW, *HOSTS, *PACKAGES)}


@functools.cache
def case_names() -> tuple[str, ...]:
    """Return the names of all cases, without importing TensorFlow into the test process."""
    folders = (("multirank", ""), ("ecosystem", "ecosystem."), ("horovod", "horovod."))
    cases = (_functions(folder, "cases_*.py", prefix, _is_case) for folder, prefix in folders)
    return (*itertools.chain.from_iterable(cases), *_functions("law", "[efg]*.py", "law.", _is_program))


def _functions(folder: str, files: str, prefix: str, wanted: Callable[[ast.FunctionDef], bool]) -> Iterator[str]:
    for path in sorted((ROOT / "tests" / folder).glob(files)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and wanted(node):
                yield f"{prefix}{path.stem}.{node.name}"


def _is_case(function: ast.FunctionDef) -> bool:
    return function.name.startswith("case_")


def _is_program(function: ast.FunctionDef) -> bool:
    return function.name[0] != "_" and [a.arg for a in function.args.args] == ["rank", "size"]


@functools.cache
def results(launch: Launch, cases: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the runner's report of each case; for each case without a report, how its job ended.

    If a case ends its job, the cases after it run in another job. A job that fails after its last case, because its end
    compares the ranks once more, is a failure of the last case.
    """
    reported: dict[str, Any] = {}
    endings: dict[str, str] = {}
    left = list(cases)
    while left and len(endings) < _ENDED_JOBS:
        lines, ending, failed, timed_out = _run(launch, left)
        ended, left = left[len(lines) :][:1] or left[-1:] * failed, left[len(lines) + 1 :]
        reported |= {line["case"]: line for line in lines if line["case"] not in ended}
        endings |= dict.fromkeys(ended, ending)
        if timed_out:
            break
    return reported, endings | dict.fromkeys(left, f"it was not begun; the one before: {ending}" if left else "")


def _run(launch: Launch, cases: Sequence[str]) -> tuple[list[dict[str, Any]], str, bool, bool]:
    """Run one job and return its reports, how it ended, and whether it failed, and whether it timed out."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report"
        deadline = os.environ.get("TFDIST_STALL_ABORT_SECONDS", _ABORT_SECONDS)
        settings = {"TFDIST_STALL_SECONDS": "10", "TFDIST_STALL_ABORT_SECONDS": deadline, **dict(launch.settings)}
        arguments = ["-m", "tests.multirank.runner", str(report), *cases]
        job = (
            _on_hosts(launch, arguments, settings)
            if launch.hosts
            else mpirun(launch.ranks, arguments, TIMEOUT_SECONDS, settings)
        )
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    ending = f"exit code {job.code} after {job.seconds:.0f} s\n{job.output[-3000:]}\n{job.errors[-6000:]}"
    if job.code != 0:
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{launch.name.replace(' ', '_')}-{cases[0]}.log"
        log.write_text(f"{job.output}\n{job.errors}")
        ending += f"\nall of it: {log}"
    return lines, ending, job.code != 0, job.code is None


def _on_hosts(launch: Launch, arguments: Sequence[str], settings: Mapping[str, str]) -> Finished:
    with Hosts(len(launch.hosts)) as hosts:
        ranks = dict(zip(hosts.names, launch.hosts, strict=True))
        return hosts.job(ranks, arguments, TIMEOUT_SECONDS, settings)
