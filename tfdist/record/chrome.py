"""Chrome trace of all ranks, which opens in Perfetto and in Chrome's about:tracing.

Its format is the JSON array of "complete" events described in the Trace Event Format document of the Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tfdist.core.files import whole
from tfdist.record.ranks import Rank
from tfdist.record.recorded import Event
from tfdist.record.steps import step_starts

# A rank has one line for its computing thread and one for exchanges in other threads; the operations' lines follow.
_COMPUTING = ("copy in", "held up")
_ROWS = ("computation", "exchange")


def write(path: str, ranks: Sequence[Rank]) -> None:
    """Write the trace, whole or not at all.

    Args:
      path: path of the file.
      ranks: the ranks, with times on one clock.
    """
    begin = min((event.start for rank in ranks for event in rank.recorded.events), default=0.0)
    trace = [entry for rank in ranks for entry in _of_rank(rank, begin)]
    with whole(path) as made, open(made, "w") as file:
        json.dump(trace, file)


def _of_rank(rank: Rank, begin: float) -> Iterator[dict[str, Any]]:
    pid = rank.number
    lines = [*_ROWS, *dict.fromkeys(event.owner for event in rank.operations)]
    name = f"rank {pid} on {rank.recorded.head['host']}"
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    for tid, line in enumerate(lines):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": line}}
    latest = max((max(event.start, event.met, event.end) for event in rank.recorded.events), default=0.0)
    for event in rank.recorded.events:
        end = event.end or event.met or latest
        yield {
            "ph": "X",
            "name": event.kind or event.what,
            "cat": event.owner,
            "pid": pid,
            "tid": int(event.kind not in _COMPUTING) if event.kind else lines.index(event.owner),
            "ts": (event.start - begin) * 1e6,
            "dur": (end - event.start) * 1e6,
            "args": _arguments(event),
        }
    for step, start in step_starts(rank.spans).items():
        yield {"ph": "i", "name": f"step {step}", "pid": pid, "tid": 0, "s": "p", "ts": (start - begin) * 1e6}


def _arguments(event: Event) -> dict[str, Any]:
    if event.kind:
        return {"what": event.what, "step": event.step, "in": event.owner}
    waited = {"waited_ms": (event.met - event.start) * 1e3} if event.met else {"waits": True}
    return {"number": event.step, "bytes": event.size_bytes, **waited}
