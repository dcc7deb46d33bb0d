"""Worker: runs programs on one rank, or as one process; the jobs start ``python -m conformance_programs.worker``.

A program's arrays go to ``FOLDER/NAME.RANK.npz``, and its outcome to ``FOLDER/NAME.RANK.json``. After each program the
ranks wait for each other's files. Files, and not tfdist, tell the other ranks' outcomes, since tfdist is under test.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import linecache
import logging
import os
import random
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BROKEN = 3  # exit code: a program has failed, and this process may be in a wrong state
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_MESSAGE = re.compile(r"^\s*(?:[\w.]+\.)?(\w+: \S.*)$")


def main() -> None:
    """Run the programs in the order in which they are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("style")
    parser.add_argument("programs", nargs="+", help="MODULE.NAME")
    parser.add_argument("--alone", nargs=2, type=int, metavar=("RANK", "SIZE"), help="run without tfdist, as this rank")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds for the other ranks to end a program")
    options = parser.parse_args()
    if options.alone:
        rank, size = options.alone
    else:
        import tfdist

        rank, size = tfdist.rank(), tfdist.size()
    for place in options.programs:
        module, _, name = place.rpartition(".")
        start = time.monotonic()
        with _heard() as said:
            outcome = {**_run(module, name, options.style, rank, size, options.folder), "said": said}
        outcome["seconds"] = round(time.monotonic() - start, 2)
        _write(options.folder / f"{name}.{rank}.json", json.dumps(outcome).encode())
        if not options.alone and not _all_ended_alike(options.folder, name, size, options.wait):
            sys.stderr.flush()
            os._exit(BROKEN)  # the other ranks may wait for this one where an exception cannot reach them


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect the warnings and the lines of tfdist's log while the context is open."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger, show = logging.getLogger("tfdist"), warnings.showwarning
    logger.addHandler(handler)
    # Not ``catch_warnings``, which would repeat warnings that have been shown already.
    warnings.showwarning = lambda message, *where: (said.append(str(message)), show(message, *where))[1]
    try:
        yield said
    finally:
        warnings.showwarning = show
        logger.removeHandler(handler)


def _run(module: str, name: str, style: str, rank: int, size: int, folder: Path) -> dict[str, Any]:
    try:
        _start_afresh(style, rank)
        arrays = getattr(importlib.import_module(f"conformance_programs.{module}"), name)(rank, size)
        temporary = folder / f"{name}.{rank}.tmp.npz"
        np.savez(temporary, **{key.replace("/", "."): np.asarray(value) for key, value in arrays.items()})
        temporary.rename(folder / f"{name}.{rank}.npz")
    except Exception:
        text = traceback.format_exc()
        refused, message = judged(text)
        return {"error": message, "refused": refused, "traceback": text}
    return {"error": "", "refused": False}


def _start_afresh(style: str, rank: int) -> None:
    """Reset graphs, sessions and seeds, so that the program starts almost as in a new process."""
    import keras
    import tensorflow as tf

    gc.collect()
    if style == "graph":
        tf.compat.v1.disable_v2_behavior()
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.set_random_seed(rank)
    else:
        keras.utils.clear_session()
        tf.random.set_seed(rank)
    random.seed(rank)
    np.random.seed(rank)


def judged(text: str) -> tuple[bool, str]:
    """Return whether a traceback ends with a refusal by tfdist, and the first line of the error's message.

    In a refusal, the last frame is a ``raise`` statement of tfdist. Frames within messages count too. Errors about
    missing ranks are no refusals.
    """
    frames = list(_FRAME.finditer(text))
    after = text[frames[-1].end() :] if frames else text
    messages = [found[1] for line in after.splitlines() if (found := _MESSAGE.match(line))]
    message = messages[0] if messages else text.strip().splitlines()[-1]
    if not frames:
        return False, message
    path, line = Path(frames[-1][1]), int(frames[-1][2])
    raised = linecache.getline(str(path), line).strip().startswith("raise ")
    return "tfdist" in path.parts and raised and not message.startswith("PeerError"), message


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.rename(path)


def _all_ended_alike(folder: Path, name: str, size: int, wait_seconds: float) -> bool:
    """Return whether all ranks have finished the program, or tfdist has refused it on all ranks."""
    paths = [folder / f"{name}.{rank}.json" for rank in range(size)]
    deadline = time.monotonic() + wait_seconds
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    outcomes = [json.loads(path.read_text()) for path in paths]
    return all(not o["error"] for o in outcomes) or all(o["refused"] for o in outcomes)


if __name__ == "__main__":
    main()
