"""Signals: a graph waits for a named operation without blocking a thread of TensorFlow.

TensorFlow executes ready operations in any order, which differs between ranks, with a few threads. If each thread
waited for an operation that another rank has not begun, no further operation could begin. The ``Dequeue`` of a queue is
one of the few operations that wait without a thread (tensorflow/core/kernels/queue_op.h, an ``AsyncOpKernel``). A
separate thread puts a value into the queue when the named operation has ended.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.compat import eager
from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.traversal import outermost

_ROOM = 8
_raised: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_lock = threading.Lock()
_threads: list[threading.Thread] = []


class Signal:
    """The signal of one operation of a graph, which waits for it in one run or call at a time."""

    def __init__(self) -> None:
        self._in_session = function_state.in_session()
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._queue = tf.queue.FIFOQueue(_ROOM, [tf.bool], [[]])
            self._enqueue = self._queue.enqueue(True) if self._in_session else None
            self._size = self._queue.size() if self._in_session else None
            graph = tf.compat.v1.get_default_graph()
        self._state = make_state(outermost(graph)) if self._in_session else None

    def clear(self) -> tf.Operation:
        """Return an operation that removes signals left by a run that failed before it waited."""
        with tf.device("/device:CPU:0"):
            return self._queue.dequeue_many(self._queue.size()).op

    def wait(self) -> tf.Operation:
        """Return an operation that ends when the signal is raised."""
        with tf.device("/device:CPU:0"):
            return self._queue.dequeue().op

    def raise_(self) -> None:
        """Have another thread raise the signal soon."""
        with _lock:
            if not _threads:
                _threads.append(threading.Thread(target=_raise_all, name="tfdist signals", daemon=True))
                _threads[0].start()
        _raised.put(self._raise_now)

    def _raise_now(self) -> None:
        if self._state is None:
            with eager.mode():
                self._queue.enqueue(True)
            return
        for session in list(self._state.notes):  # any of them may be the one that waits
            run = inspect.unwrap(type(session).run)  # without tfdist's patch, since this is no training step
            with contextlib.suppress(Exception):  # the session may be closed
                if run(session, self._size) < _ROOM:  # else enqueue would block this thread: the session never waits
                    run(session, self._enqueue)


def _raise_all() -> None:
    while True:
        one = _raised.get()
        with contextlib.suppress(Exception):  # the session may be closed, so that no run waits
            one()
        del one
