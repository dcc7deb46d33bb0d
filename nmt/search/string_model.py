"""The translation graph for export: strings in, strings out, with operations of TensorFlow alone."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from nmt.core.errors import InputError
from nmt.options.config import Config
from nmt.search.translation_model import SLACK, searched
from nmt.text.tokens import BPE_MARK, SPM_SPACE
from nmt.text.vocabulary import UNK, SourceVocabulary, Vocabulary

v1 = tf.compat.v1


def string_translations(
    translator: Any,
    vocabularies: tuple[SourceVocabulary, Vocabulary],
    config: Config,
    lines: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return translations of lines of prepared text, as words that are separated by spaces.

    Args:
        translator: a translator with dropout 0, or an ensemble.
        vocabularies: source and target vocabulary.
        config: options of a greedy or beam search without a shortlist.
        lines: string [batch], tokens separated by spaces; a blank line has blank translations.

    Returns:
        string [batch, translations], best first; and the scores [batch, translations], None for greedy search.

    Raises:
        InputError: the search or the source cannot be exported.
    """
    source_words, vocabulary = vocabularies
    if not isinstance(source_words, Vocabulary):
        raise InputError("a model that reads characters (--use_char_encode) cannot be exported: train with words")
    if config.search_mode == "sample" or config.shortlist:
        what = "--shortlist" if config.shortlist else "--infer_mode=sample"
        raise InputError(f"{what} cannot be exported: leave it out, for greedy or beam search")
    tokens = tf.strings.split(lines, " ")
    tokens = tf.ragged.boolean_mask(tokens, tf.strings.length(tokens) > 0)[:, : config.src_max_len_infer or None]
    # A search needs a sentence: a last row is translated, and left out, if no line has a token.
    tokens = tf.concat([tokens, tf.ragged.constant([[UNK]])], 0)
    has_tokens = tokens.row_lengths()[:-1] > 0
    full = tf.where(tf.concat([has_tokens, [~tf.reduce_any(has_tokens)]], 0))[:, 0]
    source, lengths = _encoded(tf.gather(tokens, full), source_words)
    limits = _limits(lengths, config, translator.architecture.longest)
    marks = vocabulary.unk_id, vocabulary.sos_id, vocabulary.eos_id
    ids, scores = searched(translator, source, lengths, limits, marks, config)
    joined = _joined(ids, vocabulary, config.subword_option)
    shape = tf.stack([tf.size(lines, tf.int64) + 1, tf.shape(ids, tf.int64)[1]])
    texts = tf.tensor_scatter_nd_update(tf.fill(shape, ""), full[:, None], joined)[:-1]
    return texts, None if scores is None else tf.scatter_nd(full[:, None], scores, shape)[:-1]


def _encoded(tokens: tf.RaggedTensor, vocabulary: Vocabulary) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ids, int32 [time, batch], and lengths, int32 [batch]."""
    known = tf.lookup.KeyValueTensorInitializer(
        tf.constant(vocabulary.words), tf.constant(vocabulary.encode(vocabulary.words)), value_dtype=tf.int32
    )
    table = tf.lookup.StaticHashTable(known, vocabulary.unk_id)
    ids = tf.ragged.map_flat_values(table.lookup, tokens).to_tensor(vocabulary.padding_id)
    return tf.transpose(ids), tf.cast(tokens.row_lengths(), tf.int32)


def _limits(lengths: tf.Tensor, config: Config, longest: int | None) -> tf.Tensor:
    """Return the most words of each translation, eos included, as `TranslationModel` does."""
    limits = tf.fill(tf.shape(lengths), config.tgt_max_len_infer) if config.tgt_max_len_infer else 2 * lengths + SLACK
    limits = tf.maximum(limits, config.min_length + 1)
    return limits if longest is None else tf.minimum(limits, longest)


def _joined(ids: tf.Tensor, vocabulary: Vocabulary, subword_option: str) -> tf.Tensor:
    """Return the words up to the first end mark, joined as by `nmt.text.tokens.join`, string [batch, translations]."""
    kept = tf.equal(tf.cumsum(tf.cast(tf.equal(ids, vocabulary.eos_id), tf.int32), axis=2), 0)
    words = tf.gather(tf.constant(vocabulary.words), ids)
    flat = tf.ragged.boolean_mask(tf.reshape(words, [-1, tf.shape(ids)[2]]), tf.reshape(kept, [-1, tf.shape(ids)[2]]))
    lines = tf.reshape(tf.strings.reduce_join(flat, axis=1, separator=" "), tf.shape(ids)[:2])
    if subword_option == "bpe":
        return tf.strings.regex_replace(tf.strings.regex_replace(lines, f"{BPE_MARK}( |$)", ""), " +$", "")
    if subword_option == "spm":
        return tf.strings.strip(tf.strings.regex_replace(tf.strings.regex_replace(lines, " ", ""), SPM_SPACE, " "))
    return lines
