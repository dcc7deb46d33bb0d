"""Timeline: Horovod's names for a record of collective operations, which tfdist makes of a whole job."""

from __future__ import annotations

from tfdist.core.log import announce


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Log how a timeline is recorded: ``TFDIST_TIMELINE``, for a whole job.

    Args:
      file_path: name for the setting.
      mark_cycles: has no meaning here, since there are no cycles.
    """
    announce(f"start_timeline records nothing here: start the job with TFDIST_TIMELINE={file_path}, which records all")


def stop_timeline() -> None:
    """Do nothing: see ``start_timeline``."""
