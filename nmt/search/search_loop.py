"""The loop of every search: writes one word in each iteration; finished sentences leave the batch.

It is a single while loop inside the graph. Once short sentences have left, a step costs only the work for the remaining
sentences. A sentence's translations do not depend on the other sentences of its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.interface import StepDecoder


class PartialTranslations(NamedTuple):
    """The translations so far of each sentence that is not finished.

    Attributes:
        ids: words of the translations, sos first; int32 [sentences, translations, 1 + time].
        finished: whether a translation has ended; bool [sentences, translations].
        scores: [sentences, translations].
        account: further state of the search; nested tensors [sentences, translations, ...].
    """

    ids: tf.Tensor
    finished: tf.Tensor
    scores: tf.Tensor
    account: Any = ()

    @property
    def time(self) -> tf.Tensor:
        """Number of words in each translation so far, an int32 scalar."""
        return tf.shape(self.ids)[2] - 1


# Arguments: the translations so far; logits of the next words, [sentences * translations, vocabulary]; attention
# weights of this step, [sentences * translations, source time] or None.
# Returns: the translations with one word more; and for each, the row of the translation that it extends, int32
# [sentences, translations]. Translation i of sentence s has row s * translations + i.
Advance = Callable[[PartialTranslations, tf.Tensor, tf.Tensor | None], tuple[PartialTranslations, tf.Tensor]]


@dataclass(frozen=True)
class Forbidden:
    """The words that a search may not write.

    Attributes:
        eos_id: id of eos, which is forbidden before `min_length` words are written.
        min_length: the fewest words of a translation, without eos.
        unk_id: id of a word that is always forbidden; None for no such word.
    """

    eos_id: int
    min_length: int = 0
    unk_id: int | None = None

    def at(self, time: tf.Tensor, logits: tf.Tensor) -> tf.Tensor | None:
        """Return the mask to add to the logits after `time` words: [vocabulary], 0 or minus infinity; None: no mask."""
        if not self.min_length and self.unk_id is None:
            return None
        words = tf.range(tf.shape(logits)[1])
        never = tf.equal(words, self.eos_id) & (time < self.min_length)
        if self.unk_id is not None:
            never |= tf.equal(words, self.unk_id)
        return tf.where(never, tf.constant(-float("inf"), logits.dtype), tf.zeros([], logits.dtype))


def write_words(
    decoder: StepDecoder,
    limits: tf.Tensor,
    start: PartialTranslations,
    advance: Advance,
    translations: int | tf.Tensor,
    eos_id: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Write words until all translations of all sentences have ended.

    Args:
        decoder: a decoder over the memory of the sentences.
        limits: int32 [batch], the most words of each sentence's translations.
        start: state of all sentences before the first word; it may have fewer translations than `translations`.
        advance: function that extends each translation by a word.
        translations: number of translations of each sentence after the first word.
        eos_id: id that fills the ends of short translations.

    Returns:
        ids, int32 [batch, translations, time], without sos; time is the length of the longest translation. And the
        scores, [batch, translations], 0 where the limit is 0.
    """
    batch = tf.shape(limits)[0]
    sentences = tf.cast(tf.where(limits > 0)[:, 0], tf.int32)
    state = tf.nest.map_structure(
        lambda value: tf.repeat(tf.gather(value, sentences), tf.shape(start.scores)[1], axis=0), decoder.initial_state
    )
    kept = tf.nest.map_structure(lambda value: tf.gather(value, sentences), (limits, start, decoder.sources))
    shape = tf.stack([batch, translations])
    results = tf.zeros(tf.concat([shape, [0]], 0), tf.int32), tf.zeros(shape, start.scores.dtype)
    variables = (sentences, kept, results, state)

    def body(*flat: tf.Tensor) -> list[tf.Tensor]:
        sentences, (limits, written, sources), results, state = tf.nest.pack_sequence_as(variables, flat)
        logits, state, weights = decoder.step(state, tf.reshape(written.ids[:, :, -1], [-1]), sources)
        written, rows = advance(written, logits, weights)
        done = tf.reduce_all(written.finished, 1) | (written.time >= limits)

        def leave() -> list[tf.Tensor]:
            stay, go = (tf.where(which)[:, 0] for which in (~done, done))
            found = _filled_in(results, tf.gather(sentences, go), written, go, eos_id)
            going_on = (sentences, (limits, written, sources), rows)
            return tf.nest.flatten((tf.nest.map_structure(lambda value: tf.gather(value, stay), going_on), found))

        going_on = (sentences, (limits, written, sources), rows)
        flat = tf.cond(
            tf.reduce_any(done), leave, lambda: [tf.identity(value) for value in tf.nest.flatten((going_on, results))]
        )
        (sentences, kept, rows), results = tf.nest.pack_sequence_as((going_on, results), flat)
        rows = tf.reshape(rows, [-1])
        state = tf.nest.map_structure(lambda value: tf.gather(value, rows), state)
        return tf.nest.flatten((sentences, kept, results, state))

    any_size = [tf.TensorShape([None] * len(value.shape)) for value in tf.nest.flatten((sentences, kept[:2]))]
    any_size += any_batch(tf.nest.flatten(kept[2]))
    any_size += [tf.TensorShape([None] * 3), tf.TensorShape([None] * 2), *any_batch(tf.nest.flatten(state))]
    last = tf.while_loop(
        lambda sentences, *_: tf.size(sentences) > 0, body, tf.nest.flatten(variables), shape_invariants=any_size
    )
    ids, scores = tf.nest.pack_sequence_as(variables, last)[2]
    return ids, scores


def any_batch(state: list[tf.Tensor]) -> list[tf.TensorShape]:
    """Return the shapes of the tensors with an unknown batch size, for `shape_invariants` of a loop."""
    return [tf.TensorShape([None, *value.shape[1:]]) for value in state]


def _filled_in(
    results: tuple[tf.Tensor, tf.Tensor], sentences: tf.Tensor, written: PartialTranslations, go: tf.Tensor, eos_id: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the results with those of `sentences`, which are rows `go` of `written`; pad the other ids with eos."""
    ids, scores = results
    before = tf.shape(ids)
    more = tf.fill(tf.stack([before[0], before[1], written.time - before[2]]), eos_id)
    return (
        tf.tensor_scatter_nd_update(
            tf.concat([ids, more], 2), sentences[:, None], tf.gather(written.ids[:, :, 1:], go)
        ),
        tf.tensor_scatter_nd_update(scores, sentences[:, None], tf.gather(written.scores, go)),
    )
