"""Timeline: puts the parts that the ranks have written together in one file."""

from __future__ import annotations

import os

from tfdist.core.log import announce, log
from tfdist.record import chrome
from tfdist.record.ranks import load
from tfdist.record.steps import table
from tfdist.record.trace_files import timeline_file


def put_together(timeline: str, size: int) -> None:
    """Put the ranks' parts together if all are visible on this machine, and log the table of steps.

    Args:
      timeline: path of the timeline.
      size: number of ranks that have written.
    """
    files = [timeline_file(timeline, rank) for rank in range(size)]
    there = [file for file in files if os.path.exists(file)]
    if not there:
        log(f"there is no timeline: {files[0]} could not be written")
        return
    if len(there) < len(files):
        announce(
            f"the timeline's files of {len(files) - len(there)} ranks are on other machines: copy them to one folder, "
            f"and run python -m tfdist trace {timeline}.rank-* --chrome {timeline}"
        )
        return
    try:
        ranks = load(there)
        chrome.write(timeline, ranks)
    except (OSError, ValueError) as error:
        announce(
            f"the timeline could not be put together: {error}. Its parts are kept: run python -m tfdist trace "
            f"{timeline}.rank-* --chrome {timeline}"
        )
        return
    announce(f"the timeline is in {timeline}\n{table([rank.spans for rank in ranks])}")
    for file in there:
        os.unlink(file)
