"""The program: `python -m nmt.nmt --name=value ...`, alone or as `mpirun -n N python -m nmt.nmt ...`.

Trains a translation model, or, with --inference_input_file, translates a file with one. This module parses,
checks, builds and wires; it alone knows `tfdist`, whose import makes the ranks start from equal weights and
average their gradients, and it chooses once which objects write (on rank 0) and which do nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

import tfdist
from nmt.core.errors import InputError
from nmt.core.files import DISK_FULL, unwritable
from nmt.core.ranks import AgreedError, Ranks, from_root
from nmt.options.config import FIELDS, Config
from nmt.options.resolve import help_text, parse, read_file, read_saved, resolve
from nmt.runs.training_run import HPARAMS, train_model
from nmt.runs.translation_run import infer

Value = TypeVar("Value")


class Processes:
    """The ranks that tfdist has found; implements `nmt.core.ranks.Ranks`."""

    def __init__(self) -> None:
        self.rank: int = tfdist.rank()
        self.size: int = tfdist.size()

    def sum(self, value: np.ndarray) -> np.ndarray:
        """The sum over all ranks. Collective."""
        return tfdist.all_reduce(value, op="sum")

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value. Collective."""
        return tfdist.broadcast(value)

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks. Collective."""
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        ends = np.cumsum(tfdist.all_gather(np.array([mine.size])))
        return [pickle.loads(part.tobytes()) for part in np.split(tfdist.all_gather(mine), ends[:-1])]

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Marks work that the other ranks wait for."""
        return tfdist.alone(reason)

    def barrier(self) -> None:
        """Returns when all have called it. Collective."""
        tfdist.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program on this rank and returns its exit code; without arguments, by the command line's."""
    tf.compat.v1.disable_control_flow_v2()  # loops of small cells take less processor time in version 1
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)  # a line for each checkpoint that is read
    ranks = Processes()
    try:
        run(sys.argv[1:] if arguments is None else arguments, ranks)
    except AgreedError as error:
        if error.is_mine:
            print(f"nmt: {error}", file=sys.stderr, flush=True)
        ranks.barrier()  # a launcher may kill the others as soon as one exits with an error
        return 1
    except (InputError, OSError) as error:
        message = f"nmt: {error}"
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            message = f"nmt: {unwritable(error.filename or 'standard output or a file of --out_dir', error)}"
        # On this rank alone, as it writes: the others wait, and must be ended.
        if ranks.size > 1:
            tfdist.abort(message)
        print(message, file=sys.stderr, flush=True)
        return 1
    return 0


def run(arguments: Sequence[str], ranks: Ranks) -> None:
    """Does what the arguments ask for.

    Collective: every rank calls; the arguments of rank 0 count.

    Raises:
        AgreedError: on every rank, for a user's mistake.
        InputError: on the rank that writes, for one that shows during training, such as a full disk.
    """
    if {"--help", "-h"} & set(arguments):
        from_root(ranks, lambda: print(help_text(), end=""))
        return
    config, saved = from_root(ranks, lambda: configure(arguments))
    if config.is_inference:
        infer(config, saved, ranks, tfdist.disable_broadcast)
    else:
        train_model(config, saved, ranks, tfdist.disable_broadcast)


def configure(arguments: Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """The configuration, and the contents of the `hparams` file (beside --ckpt, or in out_dir) behind it.

    A file --hparams_path comes before the flags, and says so where they differ.

    Raises:
        InputError: for any mistake in the flags or in that file.
    """
    explicit = parse(arguments)
    saved: dict[str, Any] = {}
    path = ""
    ckpt = explicit.get("ckpt", "")
    for directory in ((os.path.dirname(ckpt) or ".") if ckpt else "", explicit.get("out_dir", "")):
        path = os.path.join(directory, HPARAMS)
        if directory and os.path.isfile(path):
            try:
                with open(path, encoding="utf-8") as file:
                    saved = read_saved(file.read(), path)
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read ({error}): restore it or choose another out_dir") from None
            break
    first = read_file(explicit["hparams_path"]) if explicit.get("hparams_path") else {}
    for name in sorted(explicit.keys() & first.keys()):
        if explicit[name] != first[name]:
            print(f"# --{name}={explicit[name]} is overridden by {explicit['hparams_path']}: {first[name]}", flush=True)
    if explicit.get("override_loaded_hparams"):
        saved = {name: value for name, value in saved.items() if name not in FIELDS}
    return resolve({**explicit, **first}, saved, path), saved


if __name__ == "__main__":
    sys.exit(main())
