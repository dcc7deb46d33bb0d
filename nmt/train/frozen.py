"""Frozen parts of a model: variables that a training leaves as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nmt.core.errors import InputError
from nmt.model.architecture import Architecture

_SCOPES = {  # of the parts that --freeze names; the first that fits counts
    "source_embedding": ("embeddings/encoder/", "embeddings/embedding_share"),
    "target_embedding": ("embeddings/decoder/", "embeddings/embedding_share"),
    "output": ("dynamic_seq2seq/decoder/output_projection/",),
    "encoder": ("dynamic_seq2seq/encoder/",),
    "decoder": ("dynamic_seq2seq/decoder/",),
}


def parts_of(name: str) -> set[str]:
    """Return the parts that a variable belongs to: one, or both embeddings for a shared table.

    >>> parts_of("dynamic_seq2seq/decoder/output_projection/kernel")
    {'output'}
    """
    found = {part for part, scopes in _SCOPES.items() if name.startswith(scopes)}
    return {"output"} if "output" in found else found


def trained(variables: Sequence[Any], frozen: Sequence[str], architecture: Architecture) -> list[Any]:
    """Return the variables that are in no frozen part.

    Args:
        variables: variables of a model.
        frozen: names of parts.
        architecture: architecture of the model.

    Raises:
        InputError: no variable is left.
    """
    kept = [variable for variable in variables if not parts_of(variable.op.name) & set(frozen)]
    if not kept:
        tied = " (the output layer is an embedding here)" if architecture.ties_output else ""
        raise InputError(f"--freeze={','.join(frozen)} leaves nothing to train{tied}: name fewer parts")
    return kept
