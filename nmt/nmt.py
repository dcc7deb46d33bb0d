"""The main program: `python -m nmt.nmt --name=value ...`, alone or as `mpirun -n N python -m nmt.nmt ...`.

Trains a translation model, or, with --inference_input_file, translates a file with one.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from nmt.core.ranks import call_on_root
from nmt.options.command import exit_code
from nmt.options.config import FIELDS, Config
from nmt.options.flags import asks_for_help, help_text
from nmt.runs.configure import configure
from nmt.runs.program import start
from nmt.runs.tfdist_ranks import Processes
from nmt.runs.training_run import train_model
from nmt.runs.translation_run import infer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on this rank and return its exit code; `arguments` None means those of the command line."""
    ranks = start()
    given = sys.argv[1:] if arguments is None else arguments
    return exit_code(lambda: run(given, ranks), ranks, ranks.abort, speaker="nmt: ")


def run(arguments: Sequence[str], ranks: Processes) -> None:
    """Print the help, train a model or translate a file, as the arguments ask.

    Collective: every rank calls; the arguments of rank 0 count.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
        InputError: on the rank that writes, for an error during training, such as a full disk.
    """
    if asks_for_help(arguments):
        call_on_root(ranks, lambda: print(help_text("python -m nmt.nmt --name=value ...", Config), end=""))
        return
    config, saved = call_on_root(ranks, lambda: configure(arguments))
    if config.is_inference:
        infer(config, saved, ranks)
    else:
        flags = ("accumulate_steps", "loss_scale", "divergence")
        wanted = {name: getattr(config, name) for name in (*flags, "sync", "compression")}
        asked = call_on_root(ranks, lambda: {name: ranks.asked(name, flag) for name, flag in wanted.items()})
        given = {n: value for n, value in wanted.items() if value != FIELDS[n].default and n != "divergence"}
        ranks.configure(**given)
        config = dataclasses.replace(config, **{name: asked[name] for name in flags})
        try:
            train_model(config, saved, ranks, ranks.job)
        except KeyboardInterrupt:
            kept = ": what was saved before is kept, and the same command continues from there"
            raise KeyboardInterrupt(kept) from None


if __name__ == "__main__":
    sys.exit(main())
