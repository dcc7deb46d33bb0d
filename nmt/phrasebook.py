"""Writes the phrasebook, a small English-German corpus made by rule (`nmt.demo.toy_language`).

    python -m nmt.phrasebook --out_dir=D

writes D/train.en, D/train.de and the same for dev and test: tokenised, lower-cased, one sentence a line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nmt.demo.toy_language import HELD_OUT_PAIRS, write_phrasebook
from nmt.options.command import run
from nmt.options.option import option


@dataclass(frozen=True)
class PhrasebookOptions:
    """The command line."""

    title: ClassVar[str] = "options"

    out_dir: str | None = option(None, "Directory for the six files.", required=True)
    pairs: int = option(6000, "Sentence pairs for training.")
    seed: int = option(1, "Other seeds give other corpora.")


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""

    def command(options: PhrasebookOptions) -> None:
        write_phrasebook(str(options.out_dir), options.pairs, options.seed)
        print(f"{options.out_dir}: {options.pairs} pairs for training, {HELD_OUT_PAIRS} each in dev and test")

    return run(command, PhrasebookOptions, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
