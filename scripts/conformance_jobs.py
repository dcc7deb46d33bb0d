"""Jobs of ``scripts/conformance``: all programs of a style share a job; the next job omits a program that broke it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from conformance_programs.catalogue import Program
from mpi_jobs import ROOT, environment, mpirun

NOT_ENDED = "it did not end"
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a program in one process.

    Attributes:
      error: first line of the error's message; empty if there was no error.
      refused: whether tfdist refused the program with this error.
      arrays: arrays that the program returned.
      seconds: duration of the program.
      said: lines of tfdist's log, and warnings, while the program ran.
    """

    error: str
    refused: bool = False
    arrays: Arrays = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    said: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Runner:
    """Runs programs in jobs.

    Attributes:
      folder: folder for results and logs.
      ranks: number of ranks.
      stall_seconds: tfdist's deadline for a missing rank.
      without_tfdist: True if the ranks do not import tfdist, to show that the programs detect it.
    """

    folder: Path
    ranks: int
    stall_seconds: float
    without_tfdist: bool = False

    def run(self, style: str, programs: Sequence[Program]) -> tuple[dict[str, Ended], dict[str, list[Ended]]]:
        """Return the results of each program, by name: of one process, and of each rank."""
        reference, ranks = self.folder / style / "reference", self.folder / style / "ranks"
        for folder in (reference, ranks):
            folder.mkdir(parents=True)
        alone = self._start([sys.executable], reference, style, programs, ("--alone", "0", "1"))
        left = list(programs)
        told: dict[str, str] = {}  # last message of the job that a program broke
        number = 0
        while left:
            number += 1
            jobs = self._start_ranks(ranks, style, left, number)
            _wait(jobs, ranks, self.stall_seconds + 120)
            done = [p for p in left if all((ranks / f"{p.name}.{r}.json").exists() for r in range(self.ranks))]
            broken = left[len(done)] if len(done) < len(left) and not _failed(done, ranks, self.ranks) else None
            if broken:
                told[broken.name] = _last_words(ranks / f"log{number}")
            left = [p for p in left if p not in done and p is not broken]
        _wait([alone], reference, 300)
        return (
            {p.name: _ended(reference, p.name, 0, "") for p in programs},
            {p.name: [_ended(ranks, p.name, r, told.get(p.name, "")) for r in range(self.ranks)] for p in programs},
        )

    def _start_ranks(self, folder: Path, style: str, programs: Sequence[Program], number: int) -> list[Any]:
        if self.without_tfdist:
            size = str(self.ranks)
            return [
                self._start([sys.executable], folder, style, programs, ("--alone", str(rank), size), number)
                for rank in range(self.ranks)
            ]
        command = [mpirun(), "-n", str(self.ranks), sys.executable]
        return [self._start(command, folder, style, programs, ("--wait", str(self.stall_seconds + 5)), number)]

    def _start(
        self,
        command: Sequence[str],
        folder: Path,
        style: str,
        programs: Sequence[Program],
        options: Sequence[str],
        number: int = 1,
    ) -> subprocess.Popen[bytes]:
        names = [f"{p.module}.{p.name}" for p in programs]
        everything = environment(
            TFDIST_STALL_SECONDS=str(min(5.0, self.stall_seconds / 2)),
            TFDIST_STALL_ABORT_SECONDS=str(self.stall_seconds),
        )
        everything["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
        with (folder / f"log{number}").open("ab") as log:
            return subprocess.Popen(
                [*command, "-m", "conformance_programs.worker", str(folder), style, *names, *options],
                env=everything,
                stdout=log,
                stderr=log,
            )


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, patience_seconds: float) -> None:
    """Wait until the processes have ended; terminate them if no program ends for ``patience_seconds``."""
    known, since = -1, time.monotonic()
    while any(process.poll() is None for process in processes):
        count = len(list(folder.glob("*.json")))
        if count != known:
            known, since = count, time.monotonic()
        if time.monotonic() - since > patience_seconds:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
        time.sleep(0.05)


def _failed(done: Sequence[Program], folder: Path, ranks: int) -> bool:
    """Return whether the last program has ended its job by an error."""
    if not done:
        return False
    outcomes = [json.loads((folder / f"{done[-1].name}.{rank}.json").read_text()) for rank in range(ranks)]
    return any(o["error"] for o in outcomes) and not all(o["refused"] for o in outcomes)


def _ended(folder: Path, name: str, rank: int, told: str) -> Ended:
    path = folder / f"{name}.{rank}.json"
    if not path.exists():
        return Ended(f"{NOT_ENDED}: {told}" if told else NOT_ENDED)
    outcome = json.loads(path.read_text())
    arrays = {}
    if not outcome["error"]:
        with np.load(folder / f"{name}.{rank}.npz") as saved:
            arrays = dict(saved)
    return Ended(outcome["error"], outcome["refused"], arrays, outcome["seconds"], outcome["said"])


def _last_words(log: Path) -> str:
    """Return the last line of tfdist's messages in a job's log, or else the log's last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("tfdist")]
    return (own or lines or ["the job ended without a message"])[-1]
