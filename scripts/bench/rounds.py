"""What the benchmarks share: options, pinned processes, rounds of several kinds in turn, medians, and JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # modules that all scripts share

from mpi_jobs import ROOT, environment, has_gpu, mpirun  # noqa: E402

sys.path.insert(0, str(ROOT))
__all__ = ["ROOT", "environment", "has_gpu", "mpirun"]
Kind = TypeVar("Kind")
Measured = TypeVar("Measured")
PROGRAM = Path(sys.argv[0]).name
WARMUP_CALLS = 2


def parser(description: str, worker: int, rounds: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks.

    Args:
      description: description of the benchmark; its first line is shown.
      worker: number of the values of --worker, with which a benchmark starts its processes.
      rounds: default of --rounds.
    """
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--rounds", type=int, default=rounds, help="runs of each kind")
    made.add_argument("--json", type=Path, help="also write the numbers to this file")
    made.add_argument("--worker", nargs=worker, help=argparse.SUPPRESS)
    return made


def check_cores(ranks: int, oversubscribe: bool = False, remedy: str = "give fewer --ranks") -> list[int]:
    """Return the cores that this process may use. End the script if they are fewer than the ranks."""
    mpirun()  # ends the script before any measurement if there is no launcher
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks and not oversubscribe:
        sys.exit(f"{PROGRAM}: {ranks} ranks need as many cores, but this process may use {len(cores)}: {remedy}")
    return cores


def pin(first: int = 0) -> int:
    """Pin this process to the core of its rank, and return its rank. Before TensorFlow counts the cores.

    Args:
      first: number of this process if it is no rank of a job.
    """
    # Variables of MPICH and Open MPI, which have different options for it.
    rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
    if not has_gpu():
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[(first + rank) % len(cores)]})
    return rank


def begin_at(start: float) -> None:
    """Sleep until this time, so that independent processes begin together after all have built their graphs."""
    time.sleep(max(0.0, start - time.time()))


def run(commands: Iterable[Sequence[Any]], variables: Iterable[Mapping[str, str]]) -> None:
    """Run processes at once, each with its environment; end the script if one fails."""
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as ends:
        started = [
            subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True)
            for command, own in zip(commands, variables, strict=False)
        ]
        for process in started:
            ends.callback(process.kill)
        said = {threads.submit(process.communicate): process for process in started}
        for one in as_completed(said):
            if said[one].returncode:
                sys.exit(f"{PROGRAM}: a process failed:\n{one.result()[1]}")


def in_turn(
    kinds: Sequence[Kind], rounds: int, measure: Callable[[Kind], Measured], told: Callable[[Kind, Measured], str]
) -> dict[Kind, list[Measured]]:
    """Measure all kinds in turn, round after round, and print a line for each; return the results by kind."""
    found: dict[Kind, list[Measured]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds:
            found[kind].append(measure(kind))
            print(f"round {number + 1}, {told(kind, found[kind][-1])}", flush=True)
    return found


def measured(call: Callable[[], Any], times: int) -> list[float]:
    """Return the seconds of each call, without those of the warmup calls before."""
    seconds = []
    for _ in range(WARMUP_CALLS + times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[WARMUP_CALLS:]


def median_of(call: Callable[[], Any], times: int) -> float:
    """Return the median seconds of a call."""
    return statistics.median(measured(call, times))


def write(path: Path | None, found: Any) -> None:
    """Write the file of --json, if the option is given."""
    if path:
        path.write_text(json.dumps(found, indent=1, default=str) + "\n")
