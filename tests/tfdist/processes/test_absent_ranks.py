"""A rank that ends before MPI has begun ends the job; other jobs run undisturbed."""

from __future__ import annotations
