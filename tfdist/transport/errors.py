"""Errors of the ranks' common operations."""

from __future__ import annotations


class SetupError(RuntimeError):
    """A launcher has started the job, but the ranks cannot find each other."""


class PeerError(RuntimeError):
    """Another rank is missing, has ended, or waits somewhere else.

    A rank that catches it can save its state. It is not in step with the other ranks any more: collective calls are
    refused from then on.
    """


class DisagreementError(RuntimeError):
    """The ranks bring different arguments to the same operation."""
