"""What Python does first in every process that ``tests.launch`` starts: it makes importing TensorFlow cheaper.

A test run starts some two hundred ranks, and each imports TensorFlow: 3.9 s of processor time with tfdist, 3.1 s with
this. Keras imports Matplotlib where it finds it (ranks draw nothing, and users' machines need not have it), and the
rest was searches for garbage among modules that stay. And it makes each line that is printed one write, so that those
of two ranks do not mix. Processes that tests start by themselves do without this.
"""

from __future__ import annotations

import gc
import io
import sys

sys.modules["matplotlib"] = None  # type: ignore[assignment]  # as if it were not installed
gc.set_threshold(50_000, 20, 100)
if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # also where PYTHONUNBUFFERED is set
