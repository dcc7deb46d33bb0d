"""Programs of the law: small training programs in users' style, whose results on ranks must be those of one process.

A program is a function ``name(rank, size)`` in a module named for its style (``graph...``, ``functions...``,
``eager...``, ``fit...``). It builds a model, trains it on this rank's part of the data for a few steps, and returns the
arrays to compare. ``name(0, 1)`` is one process with the whole batch. All seeds are set to ``rank`` before.

Four words may begin a paragraph of its docstring:
- ``Differs: reason``: why one process must get other results; the ranks are still equal.
- ``Says: words``: words of each message of tfdist; of a program without this line it says nothing.
- ``Told: words``: words of the message with which tfdist reports that it leaves the ranks with different variables.
- ``Refused: words``: words of the error with which tfdist refuses the program on all ranks.
"""
