"""Cases that the transport could change: on pretended nodes, through MPI alone, with TensorFlow's collectives."""

from __future__ import annotations

from tests.multirank.each_case import test_case  # noqa: F401 (a test for each case of these launches)

COLLECTIVES = ("TensorFlow's collectives, 2", "TensorFlow's collectives, 3")
NODES = ("two nodes of two", "nodes of two and one", "nodes of three and two")
LAUNCHES = (*NODES, "through MPI alone", *COLLECTIVES)
