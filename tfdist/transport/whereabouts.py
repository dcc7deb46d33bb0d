"""Whereabouts: what other ranks have said of themselves, in the words of messages about those that are missing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tfdist.transport.state_line import State

NOBODY = "nobody: all are here, and their messages are on the way"
_SILENT_SECONDS = 10.0  # a rank that has not looked where it is for so long does not run


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Their numbers."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


def whereabouts(others: Mapping[int, State], ranks: Sequence[int]) -> str:
    """Where these ranks are, and whether they can be expected to move."""
    words = {
        "running": "busy outside tfdist",
        "alone": "alone with",
        "joined": "has no more data (tfdist.join)",
        "waiting": "waits in",
        "aside": "waits in",
        "moving": "waits for a message in",
        "ended": "has ended",
        "absent": "has not come",
        "gathering": "has not said that all ranks have come",
        "unknown": "was there, and has not said where it is now",
    }
    told = []
    for rank in ranks:
        state = others[rank]
        if not state.answers:
            machine = f"its machine{f' ({state.host})' * bool(state.host)} does not answer"
            told.append(f"rank {rank}: {machine}: it is down, or the way to it, or all ranks there are stopped")
            continue
        said = f"rank {rank}{f' on {state.host}' * bool(state.host)} {words[state.kind]} {state.what}".rstrip()
        silent = silent_seconds(state)
        if state.kind in ("running", "alone") and state.line:
            said += f", in {state.line}" + f" {silent:.0f} s ago" * bool(silent)
        elif silent:
            said += f", {silent:.0f} s ago"
        if silent:
            said += ": it is stopped, or in a call that lets no other thread run"
        told.append(said)
    return "; ".join(told)


def silent_seconds(state: State) -> float:
    """Since when it has not looked where it is, if that is long; else 0."""
    silent = time.time() - state.looked if state.looked and state.kind != "ended" else 0.0
    return silent if silent > _SILENT_SECONDS else 0.0
