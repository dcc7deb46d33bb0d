"""Unwritten: a session for a checkpoint that another rank writes."""

from __future__ import annotations

from typing import Any

from tensorflow.python.client import session as tf_session


class Unwritten(tf_session.SessionInterface):
    """A session that skips the operation that writes a checkpoint, and returns the path as if it had run."""

    def __init__(self, session: Any, prefix: str) -> None:
        self._session, self._prefix = session, prefix

    @property
    def graph(self) -> Any:
        return self._session.graph

    @property
    def sess_str(self) -> Any:
        return self._session.sess_str

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        return self._prefix.encode()

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> Any:
        return self._session.partial_run_setup(fetches, feeds)

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        return self._session.partial_run(handle, fetches, feed_dict)
