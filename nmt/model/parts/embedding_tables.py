"""Word embeddings: lookup tables of source and target words.

The gradient of a lookup is sparse (IndexedSlices): one row for each occurrence of a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.parts.character_convolution import CharacterEmbedding
from nmt.model.parts.initializers import InitialDistribution
from nmt.model.parts.placement import Placement

# Ids, int32 [...] (of characters: [..., WORD_LENGTH]) -> vectors [..., size].
Lookup = Callable[[tf.Tensor], tf.Tensor]

NUM_TRAINED = 3  # `<unk>` and the sentence marks are trained, not read from a file of vectors


class Embedding:
    """A vector for each word.

    Creates the variable `name` [rows, size]. Row i is word i.

    With pretrained vectors, `name` is [3, size] and holds the first three words. The others are in the variable
    `<name>_pretrained` [rows - 3, size], which is not trained. A constant is not possible: a graph definition has at
    most 2 GB. Checkpoints contain the variable. So evaluation and translation restore the vectors with all weights, and
    the file that they came from is not needed any more.

    Args:
        name: full name of the variable.
        rows: number of words.
        size: width of a vector.
        pretrained: True if the vectors are pretrained: see `Initializer.given`.
        start: initial distribution, if the family has its own; None for the initializer's.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        size: int,
        *,
        pretrained: bool = False,
        start: InitialDistribution | None = None,
    ) -> None:
        get = tf.compat.v1.get_variable
        self._given: tf.Variable | None = None
        if pretrained:
            self._table = get(name, [NUM_TRAINED, size], initializer=start)
            self._given = get(f"{name}_pretrained", [rows - NUM_TRAINED, size], trainable=False)
            return
        self._table = get(name, [rows, size], initializer=start)

    @property
    def table(self) -> tf.Tensor:
        """The variable `name` as one tensor, [rows, size] ([3, size] if pretrained)."""
        return tf.convert_to_tensor(self._table)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the vectors [..., size] of words, int32 [...]."""
        if self._given is None:
            return tf.nn.embedding_lookup(self._table, ids)
        # Two lookups, because concatenating both variables would copy the whole table in every step.
        trained = tf.nn.embedding_lookup(self._table, tf.minimum(ids, NUM_TRAINED - 1))
        given = tf.nn.embedding_lookup(self._given, tf.maximum(ids - NUM_TRAINED, 0))
        return tf.where((ids >= NUM_TRAINED)[..., None], given, trained)


def make_embeddings(
    architecture: Architecture, placement: Placement, start: InitialDistribution | None = None
) -> tuple[Lookup | None, Embedding]:
    """Create the source and target embeddings and return them; the source embedding is None if there is no source.

    Args:
        architecture: the model's architecture.
        placement: devices of the embeddings.
        start: initial distribution, if the family has its own; None for the initializer's.
    """
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
            start=start,
        )


def given_vectors(
    architecture: Architecture, source: np.ndarray | None, target: np.ndarray | None
) -> Mapping[str, np.ndarray]:
    """Return the pretrained vectors by the variables' full names, as `Initializer.given` takes them.

    Args:
        architecture: the model's architecture.
        source: float32 [src_vocab_size - 3, source_size], from `nmt.text.vector_file`; None if not pretrained.
        target: float32 [tgt_vocab_size - 3, target_size]; None if not pretrained. Ignored if the embedding is shared.

    Raises:
        ValueError: vectors are missing or have a wrong shape.
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
