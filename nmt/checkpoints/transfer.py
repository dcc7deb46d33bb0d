"""Transfer: a new model begins with the weights of a trained one, which may have other vocabularies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from nmt.checkpoints.checkpoint import check_exists, reading
from nmt.core.errors import InputError
from nmt.model.architecture import Architecture

_OUTPUT = "dynamic_seq2seq/decoder/output_projection/kernel"


class Words(NamedTuple):
    """Words of the trained model and of the new one, in the order of their ids."""

    old: Sequence[str]
    new: Sequence[str]

    @property
    def shared(self) -> tuple[list[int], list[int]]:
        """The ids of the words that both have: those of the trained model, and those of the new one."""
        ids = {word: number for number, word in enumerate(self.old)}
        pairs = [(ids[word], number) for number, word in enumerate(self.new) if word in ids]
        return [old for old, _ in pairs], [new for _, new in pairs]


def begin_with(
    session: Any, variables: Sequence[Any], path: str, architecture: Architecture, source: Words, target: Words
) -> list[str]:
    """Set the variables of a new model to the values of a checkpoint.

    A row of an embedding, or a column of the output layer, keeps its initial value if the trained model did not have
    the word.

    Args:
        session: session of the new model, with initial values.
        variables: the variables to set.
        path: the checkpoint.
        architecture: architecture of the new model.
        source: words of the source vocabularies.
        target: words of the target vocabularies.

    Returns:
        log lines.

    Raises:
        InputError: the checkpoint is damaged, or has another architecture.
    """
    check_exists(path)
    by_words = _tables(architecture, source, target)
    with reading(path):
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
    _check_complete({variable.op.name for variable in variables}, set(shapes), path)
    for variable in variables:
        name, wanted = variable.op.name, variable.shape.as_list()
        axis, words = by_words.get(name, (0, None))
        there = list(wanted)
        if words is not None:
            there[axis] = len(words.old)
        if shapes.get(name) != there:
            found = f"is {shapes[name]}" if name in shapes else "does not exist"
            raise InputError(
                f"--init_from: {name} is {there} in the new model, and {found} in {path}: give the flags of the model "
                "that was trained there"
            )
        with reading(path):
            value = reader.get_tensor(name)
        if words is not None and list(words.old) != list(words.new):
            value = _mapped(session.run(variable), axis, words, value)
        variable.load(value, session)
    lines = [f"starting with the weights of {path}"]
    for side, words in (("source", source), ("target", target)):
        if list(words.old) != list(words.new):
            lines.append(f"{len(words.shared[0])} of {len(words.new)} {side} words have the weights of this model")
    return lines


def _check_complete(wanted: set[str], there: set[str], path: str) -> None:
    """Raise InputError if a checkpoint has weights that the new model lacks; an optimizer's are below a weight."""
    scopes = tuple({f"{name.partition('/')[0]}/" for name in wanted})
    for name in sorted(name for name in there - wanted if name.startswith(scopes)):
        if not any(name.startswith(f"{weight}/") for weight in there):
            raise InputError(
                f"--init_from: the new model lacks {name} of {path}: give the flags of the model that was trained there"
            )


def _tables(architecture: Architecture, source: Words, target: Words) -> Mapping[str, tuple[int, Words]]:
    """Return the axis of the words, and the words, of each variable that has a place for each word."""
    tables = {architecture.target_embedding: (0, target)}
    if architecture.source_embedding and not architecture.character_source:
        tables[architecture.source_embedding] = (0, source)
    pretrained = {name.removesuffix("_pretrained") for name in architecture.pretrained_names if name}
    if not architecture.ties_output:
        tables[_OUTPUT] = (1, target)
    return {name: table for name, table in tables.items() if name not in pretrained}


def _mapped(new: np.ndarray, axis: int, words: Words, value: np.ndarray) -> np.ndarray:
    """Put the values of the words that the trained model has, too, into a variable's initial value, and return it."""
    old_ids, new_ids = words.shared
    if axis == 0:
        new[new_ids] = value[old_ids]
    else:
        new[:, new_ids] = value[:, old_ids]
    return new
