"""Startup code that Python runs first in every process of ``tests.launch``: it makes importing TensorFlow cheaper.

A test run starts some two hundred ranks, and each imports TensorFlow: 3.9 s of processor time with tfdist, 3.1 s with
this file. Keras imports Matplotlib if it is installed, but ranks draw nothing, and users' machines need not have it.
The rest of the time went into garbage collection among modules that stay. At an end Python collects three times more,
which takes 0.4 s. With ``--every-case`` processes end as users' do. Each printed line becomes one write, so that the
lines of two ranks do not mix. Processes that a test starts without ``tests.launch`` do not run this file.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys

sys.modules["matplotlib"] = None  # type: ignore[assignment]  # as if it were not installed
gc.set_threshold(50_000, 20, 100)
if "TESTS_EVERY_CASE" not in os.environ:  # launch.EVERY_CASE
    atexit.register(gc.freeze)  # registered first, so it runs last
if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # also if PYTHONUNBUFFERED is set
