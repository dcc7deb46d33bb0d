"""``python -m tfdist trace``: what the ranks of a job did last, by the files that their flight recorders have left."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tfdist.trace import chrome
from tfdist.trace.ranks import load
from tfdist.trace.report import report
from tfdist.trace.steps import table


def main(arguments: Sequence[str]) -> int:
    """The command.

    Args:
      arguments: after ``trace``.

    Returns:
      0; 2 if the files cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tfdist trace",
        description="Line up what the ranks of one job did last: where they first differ, where those that are "
        "missing were, and which rank was the slowest.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="of the flight recorder, or a folder of them")
    parser.add_argument("--chrome", metavar="FILE", help="write a trace that Perfetto and Chrome's about:tracing open")
    options = parser.parse_args(arguments)
    try:
        ranks = load(options.files)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"python -m tfdist trace: {error}\n")
        return 2
    sys.stdout.write(report(ranks) + "\n")
    if any(rank.spans for rank in ranks):
        sys.stdout.write("\n" + table([rank.spans for rank in ranks]) + "\n")
    if options.chrome:
        chrome.write(options.chrome, ranks)
        sys.stdout.write(f"\nthe trace is in {options.chrome}\n")
    return 0
