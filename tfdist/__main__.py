"""``python -m tfdist``, on one process or under mpirun: check what a job needs. See ``tfdist.doctor``.

``python -m tfdist trace FILES`` is another command: see ``tfdist.record``.
"""

from __future__ import annotations

import os
import sys

from tfdist.core.own_programs import LOADED_BEFORE

if __name__ == "__main__":
    if sys.argv[1:2] == ["trace"]:
        from tfdist.record.command import main as trace

        sys.exit(trace(sys.argv[2:]))
    from tfdist.doctor.command import main

    try:
        code = main(sys.argv[1:], LOADED_BEFORE)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough (``| head``); Python's own flush at the end must find a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
