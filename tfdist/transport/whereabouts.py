"""Whereabouts: descriptions of other ranks' states, for messages about missing ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tfdist.processes.process_state import GONE, RUNS, STOPPED
from tfdist.transport.state_line import RankState

NOBODY = "nobody: all are here, and their messages are on the way"
_SILENT_SECONDS = 10.0  # a rank that has not noted its place for so long does not run


def ranks_text(ranks: Sequence[int]) -> str:
    """Return the ranks' numbers as text."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


def whereabouts(others: Mapping[int, RankState], ranks: Sequence[int]) -> str:
    """Describe where these ranks are, and whether they can be expected to go on."""
    words = {
        "running": "busy outside tfdist",
        "alone": "alone with",
        "joined": "has no more data (tfdist.join)",
        "waiting": "waits in",
        "background": "waits in",
        "moving": "waits for a message in",
        "ended": "has ended",
    }
    told = []
    for rank in ranks:
        state = others[rank]
        if not state.answers:
            machine = f"its machine{f' ({state.host})' * bool(state.host)} does not answer"
            told.append(f"rank {rank}: {machine}: it or its network is down, or all ranks there are stopped")
            continue
        named = f"rank {rank}{f' on {state.host}' * bool(state.host)}"
        if state.process == GONE and state.kind != "ended":
            told.append(f"{named} is gone: its process was killed, or has ended without notice (os._exit)")
            continue
        said = f"{named} {words[state.kind]} {state.what}".rstrip()
        silent = silent_seconds(state)
        ago = f" {silent:.0f} s ago" * bool(silent)
        if state.kind in ("running", "alone") and state.line:
            said += f", in {state.line}{ago}"
        elif silent:
            said += f",{ago}"
        if state.process == STOPPED:
            said += ": it is stopped"
        elif silent:
            busy = "in a call that lets no other thread run"
            said += f": it is {busy}" if state.process == RUNS else f": it is stopped, or {busy}"
        told.append(said)
    return "; ".join(told)


def lost(states: Mapping[int, RankState]) -> str:
    """Return which ranks are stopped, gone or cannot be reached, as text; empty if none is known to be."""
    return whereabouts(states, [rank for rank, state in states.items() if state.kind != "ended" and _lost(state)])


def _lost(state: RankState) -> bool:
    if not state.answers or state.process in (GONE, STOPPED):
        return True
    return state.process != RUNS and silent_seconds(state) > 0


def silent_seconds(state: RankState) -> float:
    """Return the seconds since the rank last noted its place, if that is long ago; else 0."""
    silent = time.monotonic() - state.looked if state.looked and state.kind != "ended" else 0.0
    return silent if silent > _SILENT_SECONDS else 0.0
