"""The interface between an encoder-decoder (sequence-to-sequence) model and everything else.

    encode       source ids -> `Memory`, once for a batch of sentences
    decoder      `Memory` -> `StepDecoder`: target ids in, logits out, step by step, for search
    losses       source and target ids -> cross-entropy, over all target positions at once, for training and perplexity
    architecture the shapes

Training, evaluation and translation ask a model by these alone. A model family is a subclass of `Translator` that says
how source vectors become a memory (`_read`) and how a decoder reads it (`_over`, which gives a `Decoding`); words
become vectors, and vectors logits, in the same way for all: both are done here. TensorFlow 1 graph code; tensors are
time-major. `nmt.model.registry` lists the families.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.parts.dropout import Dropout, OtherDropout
from nmt.model.parts.embedding_tables import Lookup, make_embeddings
from nmt.model.parts.initializers import Draw, Initializer
from nmt.model.parts.placement import Placement
from nmt.model.parts.r_drop import r_drop_loss_sum
from nmt.model.parts.sampled_softmax import sampled_cross_entropy_sum
from nmt.model.parts.softmax_cross_entropy import Losses, cross_entropy_sum

_NOTHING = OtherDropout()
# Folded into the seed, where dropout of layers folds in small numbers: for the other dropouts, the sampled softmax.
_EDGES, _ATTENTION, _ACTIVATIONS = 10_000, 20_000, 30_000
_SAMPLE = 2**31 - 1


class Memory(NamedTuple):
    """What a decoder knows of a batch of source sentences.

    Attributes:
        outputs: of the encoder's top layer, [time, batch, width], zero past each sentence's end.
        lengths: int32 [batch].
        state: whatever else the family hands on, nested tensors [batch, ...].
    """

    outputs: tf.Tensor
    lengths: tf.Tensor
    state: Any


class Decoding(ABC):
    """A family's decoder with one memory: target vectors in, output vectors out.

    Attributes:
        initial_state: before the first target word; nested tensors [batch, ...], so that search can pick sentences.
        sources: what steps read of the source sentences, formed once: nested tensors [batch, ...], for the same reason.
    """

    initial_state: Any
    sources: Any = ()

    @abstractmethod
    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """The outputs [time, batch, num_units] for given target words [time, batch, target_size], with dropout."""

    @abstractmethod
    def step(self, embedded: tf.Tensor, state: Any, sources: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """One step without dropout, of any number of translations of each sentence.

        Args:
            embedded: the target words just written, [batch * translations, target_size], those of a sentence one after
                the other.
            state: before them, [batch * translations, ...].
            sources: as the attribute, of the sentences that are translated.

        Returns:
            the output [batch * translations, num_units], the state after them, and the attention's weights [batch *
            translations, source time] (None without attention).
        """


class _Narrowed(Decoding):
    """Another decoding, and a product behind it.

    Args:
        decoding: whose outputs have the width num_units.
        kernel: [num_units, output_size].
        device: where the product is.
    """

    def __init__(self, decoding: Decoding, kernel: tf.Tensor, device: str) -> None:
        self._decoding, self._kernel, self._device = decoding, kernel, device
        self.initial_state, self.sources = decoding.initial_state, decoding.sources

    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """The outputs [time, batch, output_size]."""
        outputs = self._decoding.all_steps(embedded)
        with tf.device(self._device):
            return tf.tensordot(outputs, self._kernel, 1)

    def step(self, embedded: tf.Tensor, state: Any, sources: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """One step; its output is [batch * translations, output_size]."""
        output, state, weights = self._decoding.step(embedded, state, sources)
        with tf.device(self._device):
            return tf.matmul(output, self._kernel), state, weights


class Translator(ABC):
    """A model in the current default graph.

    Making a second one in the same graph shares the variables of the first. The variables' type is that of
    the current variable scope (float32 unless set otherwise).

    Args:
        architecture: the model's shape, of the family's own kind.
        initializer: what the weights start from; biases and the attention's scales have fixed starts.
        dropout: the probability to drop an input of a layer; 0 for evaluation and search.
        dropout_seed: int32 [2], wanted with dropout and with a sampled softmax; feed another one in each step.
            Equal seeds, equal masks and samples.
        num_gpus: over how many GPUs the layers are spread; 0 for the CPU.
        other_dropout: the probabilities to drop whatever else is dropped.
        dropout_mask: "step": masks differ at all times, or "sentence": those of numbers (not of whole words) do not.
    """

    def __init__(
        self,
        architecture: Any,
        initializer: Initializer,
        dropout: float = 0.0,
        dropout_seed: tf.Tensor | None = None,
        num_gpus: int = 0,
        other_dropout: OtherDropout = _NOTHING,
        dropout_mask: str = "step",
    ) -> None:
        self.architecture: Architecture = architecture
        self._seed = dropout_seed
        per_sentence = dropout_mask == "sentence"
        self._drop_source = Dropout(other_dropout.source_words, dropout_seed, _EDGES)
        self._drop_target = Dropout(other_dropout.target_words, dropout_seed, _EDGES + 1)
        self._drop_outputs = Dropout(other_dropout.outputs, dropout_seed, _EDGES + 2, per_sentence)
        self._drop_attention = Dropout(other_dropout.attention, dropout_seed, _ATTENTION)
        self._drop_activations = Dropout(other_dropout.activations, dropout_seed, _ACTIVATIONS, per_sentence)
        placement = Placement(num_gpus)
        self._output_device = placement.output(architecture.num_decoder_layers)
        v1 = tf.compat.v1
        with v1.variable_scope(
            v1.get_variable_scope(),
            custom_getter=initializer.getter,
            reuse=v1.AUTO_REUSE,
        ):
            start = self._embeddings_start(architecture)
            self._embed_source, self._embed_target = make_embeddings(architecture, placement, start)
            with v1.variable_scope("dynamic_seq2seq"):
                self._build(architecture, Dropout(dropout, dropout_seed, per_sentence=per_sentence), placement)
                with tf.device(self._output_device), v1.variable_scope("decoder/output_projection"):
                    self._narrow, self._projection = self._output_layer(architecture)

    def _output_layer(self, architecture: Architecture) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Its kernel [output_size, tgt_vocab_size], and before it the one [num_units, output_size] where these differ.

        The variable `kernel` is one of the two: a tied output layer has none of its own, and needs none before it if
        words are as wide as the layers.
        """
        get, units = tf.compat.v1.get_variable, architecture.num_units
        start = self._output_start(architecture)
        if not architecture.ties_output:
            return None, tf.identity(get("kernel", [units, architecture.tgt_vocab_size], initializer=start))
        size = architecture.output_size
        narrow = None if size == units else tf.identity(get("kernel", [units, size], initializer=start))
        return narrow, tf.transpose(self._embed_target.table)

    def _embeddings_start(self, architecture: Any) -> Draw | None:
        """How words' vectors start, if the family says so; None: as the initializer has it."""
        return None

    def _output_start(self, architecture: Any) -> Draw | None:
        """How the output layer starts, where it has a kernel: see `_embeddings_start`."""
        return None

    def _decoding(self, memory: Memory) -> Decoding:
        """The family's, whose outputs have the width that the output layer reads."""
        decoding = self._over(memory)
        return decoding if self._narrow is None else _Narrowed(decoding, self._narrow, self._output_device)

    @abstractmethod
    def _build(self, architecture: Any, dropout: Dropout, placement: Placement) -> None:
        """Creates the family's variables, those between the embeddings and the output layer."""

    @abstractmethod
    def _read(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        """Encodes source words [time, batch, source_size] of these lengths, int32 [batch]; 0 is allowed."""

    @abstractmethod
    def _over(self, memory: Memory) -> Decoding:
        """The family's decoder with this memory."""

    def encode(self, source: tf.Tensor, source_lengths: tf.Tensor) -> Memory:
        """Read source ids, int32 [time, batch], of these lengths, int32 [batch].

        With character_source the ids are [time, batch, WORD_LENGTH]. A language model has no use for them: the
        lengths tell it how many sentences there are, whose memory is empty.
        """
        if self.architecture.language_model or self._embed_source is None:
            batch = tf.shape(source_lengths)[0]
            nothing = tf.zeros(tf.stack([0, batch, self.architecture.num_units]), self._projection.dtype)
            return Memory(nothing, source_lengths, ())
        return self._read(self._drop_source.whole(self._embed_source(source)), source_lengths)

    def decoder(self, memory: Memory, words: tf.Tensor | None = None, closed: tf.Tensor | None = None) -> StepDecoder:
        """A decoder over this memory, to be asked one step at a time.

        Args:
            memory: of the sentences.
            words: int32 [words], those that it reads and writes, by their places in this list; None: all, by their ids.
            closed: with words, bool [batch, words], those that have no probability in a sentence.
        """
        projection = self._projection
        if words is not None:
            with tf.device(self._output_device):
                if self.architecture.ties_output:  # a column is a row of the table, which is not turned as a whole
                    projection = tf.transpose(self._embed_target(words))
                else:
                    projection = tf.gather(projection, words, axis=1)
        return StepDecoder(self._decoding(memory), self._embed_target, projection, self._output_device, words, closed)

    def losses(
        self,
        source: tf.Tensor,
        source_lengths: tf.Tensor,
        target_in: tf.Tensor,
        target_out: tf.Tensor,
        target_lengths: tf.Tensor,
        num_sampled: int = 0,
        label_smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Losses:
        """Cross-entropy in nats, summed over the target positions that are no padding.

        Args:
            source: int32 [source time, batch], or as `encode` takes it.
            source_lengths: int32 [batch].
            target_in: int32 [target time, batch], starting with sos.
            target_out: int32 [target time, batch], ending with eos.
            target_lengths: int32 [batch], eos included; 0 for a sentence that does not count.
            num_sampled: words that a sampled softmax is taken over, for training; 0 for the whole vocabulary. A
                perplexity needs the latter. (The TensorFlow NMT tutorial evaluates by the sample, too, and gets
                figures that depend on its size.)
            label_smoothing: probability that is asked for of all words alike, in training.
            r_drop: what the divergence of two passes with other masks counts (`nmt.model.parts.r_drop`); 0: one pass.

        Returns:
            scalars; 0 if no position counts.

        Raises:
            ValueError: more words to sample than there are, or no seed to draw them by; or sampling beside what asks
                for all words.
        """
        for name, value in (("label_smoothing", label_smoothing), ("r_drop", r_drop)):
            if num_sampled and value:
                raise ValueError(f"{name} is {value}, which asks for all words, beside num_sampled")
        if num_sampled > self.architecture.tgt_vocab_size:
            raise ValueError(
                f"num_sampled is {num_sampled}; the target vocabulary has {self.architecture.tgt_vocab_size} words"
            )
        if num_sampled and self._seed is None:
            raise ValueError(f"num_sampled is {num_sampled}, but there is no dropout_seed (int32 [2])")
        if r_drop:  # both passes beside each other in one batch, for each of whose sentences masks are drawn
            source, target_in = (tf.concat([ids, ids], 1) for ids in (source, target_in))
            source_lengths = tf.tile(source_lengths, [2])
        decoding = self._decoding(self.encode(source, source_lengths))
        outputs = self._drop_outputs(decoding.all_steps(self._drop_target.whole(self._embed_target(target_in))))
        # Padding leaves before the projection, which is the dearest product of the model.
        real = tf.transpose(tf.sequence_mask(target_lengths, tf.shape(target_out)[0]))
        positions = tf.where(tf.reshape(real, [-1]))[:, 0]
        first, *others = (
            tf.gather(tf.reshape(one, [-1, self.architecture.output_size]), positions)
            for one in (tf.split(outputs, 2, 1) if r_drop else [outputs])
        )
        labels = tf.gather(tf.reshape(target_out, [-1]), positions)
        with tf.device(self._output_device):
            if others:
                return r_drop_loss_sum((first, others[0]), self._projection, labels, r_drop, label_smoothing)
            if not num_sampled:
                return cross_entropy_sum(first, self._projection, labels, label_smoothing)
            seed = tf.random.experimental.stateless_fold_in(self._seed, _SAMPLE)
            sampled = sampled_cross_entropy_sum(first, self._projection, labels, num_sampled, seed)
            return Losses(sampled, sampled)


class StepDecoder:
    """Ids in, logits out, one target position at a time.

    Attributes:
        initial_state: before the first target word, nested tensors [batch, ...].
        sources: what steps read of the sentences, likewise.
    """

    def __init__(
        self,
        decoding: Decoding,
        embed: Lookup,
        projection: tf.Tensor,
        device: str,
        words: tf.Tensor | None = None,
        closed: tf.Tensor | None = None,
    ) -> None:
        self._decoding = decoding
        self._embed = embed
        self._words = words
        self._projection = tf.stop_gradient(projection)  # which half precision converts once, ahead of search's loop
        self._device = device
        self.initial_state = decoding.initial_state
        self.sources = decoding.sources if words is None else (decoding.sources, closed)

    def step(self, state: Any, token_ids: tf.Tensor, sources: Any = None) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Read the words just written, of any number of translations of each sentence.

        Args:
            state: before them, [batch * translations, ...], those of a sentence one after the other.
            token_ids: int32 [batch * translations], or places in the list of words.
            sources: of the sentences that are translated; None: of all.

        Returns:
            logits [batch * translations, tgt_vocab_size or words] of the next word, the state after the words, and the
            attention's weights [batch * translations, source time] (None without attention).
        """
        sources = self.sources if sources is None else sources
        closed = None
        if self._words is not None:
            (sources, closed), token_ids = sources, tf.gather(self._words, token_ids)
        output, state, weights = self._decoding.step(self._embed(token_ids), state, sources)
        with tf.device(self._device):
            logits = tf.matmul(output, self._projection)
            return logits if closed is None else _without(logits, closed), state, weights


def _without(logits: tf.Tensor, closed: tf.Tensor) -> tf.Tensor:
    """Logits [sentences * translations, words], of which minus infinity are those closed, bool [sentences, words]."""
    sentences, words = tf.unstack(tf.shape(closed))
    grouped = tf.reshape(logits, tf.stack([sentences, -1, words]))
    grouped = tf.where(closed[:, None], tf.constant(-float("inf"), logits.dtype), grouped)
    return tf.reshape(grouped, tf.shape(logits))
