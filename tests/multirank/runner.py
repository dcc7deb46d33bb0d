"""Runs cases on all ranks of one launch: ``mpirun -n N python -m tests.multirank.runner REPORT MODULE.CASE...``.

A case is a function ``case_*`` in a module ``cases_*`` of this folder. For another folder of the tests, its name comes
first: ``ecosystem.cases_sonnet.case_adam``. The programs of ``law/`` are cases, too: ``law.eager.accumulated``. Every
rank calls the case; it fails if it raises on any rank. Rank 0 writes the report, which has one JSON line per case.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Shorter than the timeout of waits for other ranks, so that stacks show where a case hangs.
STACKS_AFTER_SECONDS = 45


@contextmanager
def _showing_where(what: str) -> Iterator[None]:
    """Print the stacks of all threads if the block takes long."""

    def show() -> None:  # faulthandler's own timer reads stacks of running threads and sometimes crashes
        sys.stderr.write(f"{what} takes long:\n")
        faulthandler.dump_traceback()

    timer = threading.Timer(STACKS_AFTER_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main(report: Path, cases: Sequence[str]) -> None:
    """Run the cases in this order and write the report."""
    import tfdist
    from tests.multirank import inside

    importlib.import_module("keras")  # after tfdist, as in users' scripts
    gc.freeze()  # modules stay: each collection would go through all of them
    faulthandler.enable()  # a rank that ends with SIGSEGV prints the line, and so the case
    output = report.open("w") if tfdist.rank() == 0 else None
    for case in cases:
        start, processor_start, failure = time.monotonic(), time.process_time(), ""
        try:
            with _showing_where(f"rank {tfdist.rank()}: {case}"):
                _call(case)
        except Exception:
            failure = traceback.format_exc()
            sys.stderr.write(f"rank {tfdist.rank()}: {case} failed:\n{failure}")  # others may wait for this rank
        mine = failure, time.process_time() - processor_start
        everyone = inside.report(mine, f"the end of {case}")
        if output:
            line = {
                "case": case,
                "seconds": round(time.monotonic() - start, 2),
                "processor_seconds": round(sum(seconds for _, seconds in everyone), 2),
                "failure": "\n".join(f"rank {rank}:\n{f}" for rank, (f, _) in enumerate(everyone) if f),
            }
            output.write(json.dumps(line) + "\n")
            output.flush()


def _call(case: str) -> None:
    *folder, module, name = case.split(".")
    if folder == ["law"]:
        from tests.law.check import check

        check(module, name)
    else:
        getattr(importlib.import_module(".".join(["tests", *(folder or ["multirank"]), module])), name)()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
