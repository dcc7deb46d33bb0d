"""Small training programs, written as users write theirs, which ``scripts/conformance`` runs on ranks and alone.

A program is a function ``name(rank, size)`` in a module named for its style (``graph...``, ``functions...``,
``eager...``, ``fit...``): it builds a model, trains it on this rank's part of the data for a few steps, and returns the
arrays that are to be equal. ``name(0, 1)`` is one process with the whole batch. All seeds are set to ``rank`` before.
A line ``Differs: reason`` in its docstring says why one process must get something else, and
``Told: words`` what tfdist says where it leaves the ranks apart.
"""
