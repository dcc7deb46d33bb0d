"""Runs every case on all ranks of one launch: ``mpirun -n N python -m tests.multirank.runner REPORT``.

A case is a function ``case_*`` in a module ``cases_*`` beside this file. It is called on every rank; it fails if it
raises on any. The report (rank 0 writes it) has one JSON line a case.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def cases() -> dict[str, Callable[[], None]]:
    """Every case by ``module.function``."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("cases_*.py")):
        module = importlib.import_module(f"tests.multirank.{path.stem}")
        for name, function in vars(module).items():
            if name.startswith("case_"):
                found[f"{path.stem}.{name}"] = function
    return found


def main(report: Path, wanted: list[str]) -> None:
    """Run the cases and write the report."""
    import tfdist

    output = report.open("w") if tfdist.rank() == 0 else None
    for name, case in cases().items():
        if wanted and not any(w in name for w in wanted):
            continue
        start, failure = time.monotonic(), ""
        try:
            case()
        except Exception:
            failure = traceback.format_exc()
            sys.stderr.write(f"rank {tfdist.rank()}: {name} failed:\n{failure}")  # should the others wait for this rank
        failures = tfdist._start.process().job.world.control.all_gather_object(failure, f"the end of {name}")
        text = "\n".join(f"rank {rank}:\n{f}" for rank, f in enumerate(failures) if f)
        if output:
            line = {"case": name, "seconds": round(time.monotonic() - start, 2), "failure": text}
            output.write(json.dumps(line) + "\n")
            output.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
