"""Signals: have a graph go on when something has ended, without a thread of TensorFlow's that waits for it.

TensorFlow takes what is ready up in any order, another one on each rank, with a few threads. If each of them waited for
an operation that another rank has not begun, nothing more could begin. The ``Dequeue`` of a queue is one of the few
operations that wait without a thread (tensorflow/core/kernels/queue_op.h, an ``AsyncOpKernel``): what has ended is put
into a queue, by a thread of its own.
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
    """What one operation of a graph waits for: in one run or call of it at a time."""

    def __init__(self) -> None:
        self._in_session = function_state.in_session()
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._queue = tf.queue.FIFOQueue(_ROOM, [tf.bool], [[]])
            self._enqueue = self._queue.enqueue(True) if self._in_session else None
            self._size = self._queue.size() if self._in_session else None
            graph = tf.compat.v1.get_default_graph()
        self._state = make_state(outermost(graph)) if self._in_session else None

    def clear(self) -> tf.Operation:
        """An operation that forgets what was raised in a run that has failed before it waited."""
        with tf.device("/device:CPU:0"):
            return self._queue.dequeue_many(self._queue.size()).op

    def wait(self) -> tf.Operation:
        """An operation that ends when the signal is raised."""
        with tf.device("/device:CPU:0"):
            return self._queue.dequeue().op

    def raise_(self) -> None:
        """Soon, by another thread."""
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
        for session in list(self._state.sessions):  # which of them waits is not known here
            run = inspect.unwrap(type(session).run)  # no step: without what is hooked in
            with contextlib.suppress(Exception):  # it was closed
                if run(session, self._size) < _ROOM:  # those that never wait fill up, and this thread is all sessions'
                    run(session, self._enqueue)


def _raise_all() -> None:
    while True:
        one = _raised.get()
        with contextlib.suppress(Exception):  # the session was closed: nobody waits
            one()
        del one
