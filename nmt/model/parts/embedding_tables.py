"""Word embeddings: the tables that both sides look their words up in.

Looked up, a table has a sparse gradient: one row for each occurrence of a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.parts.character_convolution import CharacterEmbedding
from nmt.model.parts.initializers import Draw
from nmt.model.parts.placement import Placement

# Ids, int32 [...] (of characters: [..., WORD_LENGTH]) -> vectors [..., size].
Lookup = Callable[[tf.Tensor], tf.Tensor]

NUM_TRAINED = 3  # `<unk>` and the marks of a sentence, which no file of pretrained vectors has


class Embedding:
    """A vector for each word.

    Creates the variable `name` [rows, size], in pieces of consecutive rows where it is partitioned. TensorFlow saves
    the pieces as one tensor whose row i is word i, so that a checkpoint can be read however the table is cut.

    With pretrained vectors, `name` is [3, size] and holds the first three words; the others are in the variable
    `<name>_pretrained` [rows - 3, size], which is not trained. That is a variable and no constant because a graph
    definition ends at 2 GB. It is saved with the rest, so that the graphs for evaluation and translation get the
    vectors as they get all weights, and a checkpoint stays complete when the file that they came from has gone.

    Args:
        name: full name of the variable.
        rows: words.
        size: width of a vector.
        pretrained: whether the vectors are given: see `Initializer.given`.
        num_partitions: pieces; up to 1 for none. Does not apply to pretrained vectors.
        start: how it starts, if the family says so.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        size: int,
        *,
        pretrained: bool = False,
        num_partitions: int = 0,
        start: Draw | None = None,
    ) -> None:
        get = tf.compat.v1.get_variable
        self._given: tf.Variable | None = None
        if pretrained:
            self._table = get(name, [NUM_TRAINED, size], initializer=start)
            self._given = get(f"{name}_pretrained", [rows - NUM_TRAINED, size], trainable=False)
            return
        partitioner = tf.compat.v1.fixed_size_partitioner(num_partitions) if num_partitions > 1 else None
        self._table = get(name, [rows, size], partitioner=partitioner, initializer=start)

    @property
    def table(self) -> tf.Tensor:
        """All trained vectors, [rows, size]."""
        return tf.convert_to_tensor(self._table)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """The vectors [..., size] of words, int32 [...]."""
        if self._given is None:
            return tf.nn.embedding_lookup(self._table, ids)
        # Not a lookup in the two as one: putting them together would copy the whole table in every step.
        trained = tf.nn.embedding_lookup(self._table, tf.minimum(ids, NUM_TRAINED - 1))
        given = tf.nn.embedding_lookup(self._given, tf.maximum(ids - NUM_TRAINED, 0))
        return tf.where((ids >= NUM_TRAINED)[..., None], given, trained)


def make_embeddings(
    architecture: Architecture, placement: Placement, start: Draw | None = None
) -> tuple[Lookup | None, Embedding]:
    """The lookups of source and target words; the former is None if there is no source.

    Args:
        architecture: the model.
        placement: where they are.
        start: how the tables start, if the family says so.
    """
    partitions = architecture.num_embeddings_partitions
    source: Lookup | None = None
    with tf.device(placement.embedding(architecture.src_vocab_size)):
        if architecture.character_source:
            source = CharacterEmbedding(architecture)
        elif architecture.source_embedding is not None:
            source = Embedding(
                architecture.source_embedding,
                architecture.src_vocab_size,
                architecture.source_size,
                pretrained=architecture.src_pretrained,
                num_partitions=partitions,
                start=start,
            )
    if architecture.share_embedding and isinstance(source, Embedding):
        return source, source
    with tf.device(placement.embedding(architecture.tgt_vocab_size)):
        return source, Embedding(
            architecture.target_embedding,
            architecture.tgt_vocab_size,
            architecture.target_size,
            pretrained=architecture.tgt_pretrained,
            num_partitions=partitions,
            start=start,
        )


def given_vectors(
    architecture: Architecture, source: np.ndarray | None, target: np.ndarray | None
) -> Mapping[str, np.ndarray]:
    """What `Initializer.given` must hold for a model with pretrained vectors.

    Args:
        architecture: the model.
        source: float32 [src_vocab_size - 3, source_size], from `nmt.text.vector_file`; None if not pretrained.
        target: the same for the target; where the embedding is shared, `source` counts.

    Raises:
        ValueError: vectors are missing, or of another shape.
    """
    given = {}
    for name, vectors, rows, size in zip(
        architecture.pretrained_names,
        (source, source if architecture.share_embedding else target),
        (architecture.src_vocab_size, architecture.tgt_vocab_size),
        (architecture.source_size, architecture.target_size),
        strict=True,
    ):
        if name is None:
            continue
        wanted = (rows - NUM_TRAINED, size)
        if vectors is None or vectors.shape != wanted:
            found = "there are none" if vectors is None else f"they are {list(vectors.shape)}"
            raise ValueError(f"{name} needs vectors {list(wanted)}; {found}")
        given[name] = vectors
    return given
