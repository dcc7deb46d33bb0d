"""Conformance programs: small training programs in users' style, which ``scripts/conformance`` runs on ranks and alone.

A program is a function ``name(rank, size)`` in a module named for its style (``graph...``, ``functions...``,
``eager...``, ``fit...``). It builds a model, trains it on this rank's part of the data for a few steps, and returns the
arrays to compare. ``name(0, 1)`` is one process with the whole batch. All seeds are set to ``rank`` before.
A line ``Differs: reason`` in its docstring explains why one process must get other results. A line ``Told: words`` has
words of the message with which tfdist reports that it leaves the ranks with different variables.
"""
