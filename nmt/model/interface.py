"""Interface of encoder-decoder (sequence-to-sequence) models, which training, evaluation and translation use.

    encode       source ids -> `Memory`, once for a batch of sentences
    decoder      `Memory` -> `StepDecoder`: target ids in, logits out, step by step, for search
    losses       source and target ids -> cross-entropy, over all target positions at once, for training and perplexity
    architecture sizes of the model

A model family is a subclass of `Translator`. Its `_read` encodes the embedded source into a memory; its `_over` returns
a `Decoding`, the decoder of a memory. Embeddings, the output layer and the losses are the same for all families and are
defined here. The code builds TensorFlow 1 graphs; tensors are time-major. `nmt.model.registry` lists the families.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.embedding_tables import Lookup, make_embeddings
from nmt.model.parts.initializers import InitialDistribution, Initializer
from nmt.model.parts.placement import Placement
from nmt.model.parts.r_drop import r_drop_loss_sum
from nmt.model.parts.sampled_softmax import sampled_cross_entropy_sum
from nmt.model.parts.softmax_cross_entropy import Losses, cross_entropy_sum
from nmt.options.config import Config

_NO_DROPOUT = Config(dropout=0.0)
# Numbers folded into the seed for the other dropouts and the sampled softmax. The layers' dropout folds in 0, 1, ...
_EDGES, _ATTENTION, _ACTIVATIONS = 10_000, 20_000, 30_000
_SAMPLE = 2**31 - 1


class Memory(NamedTuple):
    """An encoder's result for a batch of source sentences.

    Attributes:
        outputs: outputs of the encoder's top layer, [time, batch, width], zero past each sentence's end.
        lengths: lengths of the sentences in words, int32 [batch].
        state: further tensors for the family's decoder, nested, [batch, ...].
    """

    outputs: tf.Tensor
    lengths: tf.Tensor
    state: Any


class Decoding(ABC):
    """A family's decoder for one memory: it turns embedded target words into output vectors.

    Attributes:
        initial_state: state before the first target word; nested tensors [batch, ...], so that search can select
            sentences.
        sources: tensors of the source sentences that each step reads, computed once; nested, [batch, ...].
    """

    initial_state: Any
    sources: Any = ()

    @abstractmethod
    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """Return the outputs [time, batch, num_units] for embedded words [time, batch, target_size], with dropout."""

    @abstractmethod
    def step(self, embedded: tf.Tensor, state: Any, sources: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Run one step without dropout, for any number of translations of each sentence.

        Args:
            embedded: embedded words of the previous step, [batch * translations, target_size]; the translations of a
                sentence are consecutive.
            state: state before these words, [batch * translations, ...].
            sources: the attribute `sources`, or its rows for the sentences that are still translated.

        Returns:
            the outputs [batch * translations, num_units], the new state, and the attention weights [batch *
            translations, source time] (None without attention).
        """


class _Projected(Decoding):
    """A decoding whose outputs are projected from num_units to output_size.

    Args:
        decoding: decoding with outputs of width num_units.
        kernel: kernel of the projection, [num_units, output_size].
        device: name of the projection's device.
    """

    def __init__(self, decoding: Decoding, kernel: tf.Tensor, device: str) -> None:
        self._decoding, self._kernel, self._device = decoding, kernel, device
        self.initial_state, self.sources = decoding.initial_state, decoding.sources

    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """Return the projected outputs [time, batch, output_size]."""
        outputs = self._decoding.all_steps(embedded)
        with tf.device(self._device):
            return tf.tensordot(outputs, self._kernel, 1)

    def step(self, embedded: tf.Tensor, state: Any, sources: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Run one step; the projected output is [batch * translations, output_size]."""
        output, state, weights = self._decoding.step(embedded, state, sources)
        with tf.device(self._device):
            return tf.matmul(output, self._kernel), state, weights


class Translator(ABC):
    """A model in the current default graph.

    A second model in the same graph shares the variables of the first. The variables' dtype is that of the current
    variable scope (float32 by default).

    Args:
        architecture: the model's architecture, an instance of the family's class.
        initializer: initializer of the weights; biases and the attention's scales have fixed initial values.
        config: options of the run, of which the dropout probabilities count; all are 0 for evaluation and search.
        dropout_seed: int32 [2], required for dropout and for a sampled softmax. Feed another seed in each step; equal
            seeds give equal masks and samples.
        num_gpus: number of GPUs that the layers are spread over; 0 for the CPU.
    """

    def __init__(
        self,
        architecture: Any,
        initializer: Initializer,
        config: Config = _NO_DROPOUT,
        dropout_seed: tf.Tensor | None = None,
        num_gpus: int = 0,
    ) -> None:
        self.architecture: Architecture = architecture
        self._seed = dropout_seed
        per_sentence = config.dropout_mask == "sentence"
        self._drop_source = Dropout(config.src_word_dropout, dropout_seed, _EDGES)
        self._drop_target = Dropout(config.tgt_word_dropout, dropout_seed, _EDGES + 1)
        self._drop_outputs = Dropout(config.output_dropout, dropout_seed, _EDGES + 2, per_sentence)
        self._drop_attention = Dropout(config.attention_dropout, dropout_seed, _ATTENTION)
        self._drop_activations = Dropout(config.activation_dropout, dropout_seed, _ACTIVATIONS, per_sentence)
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
                self._build(architecture, Dropout(config.dropout, dropout_seed, per_sentence=per_sentence), placement)
                with tf.device(self._output_device), v1.variable_scope("decoder/output_projection"):
                    self._narrow, self._projection = self._output_layer(architecture)

    def _output_layer(self, architecture: Architecture) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Return two kernels: the projection's [num_units, output_size] or None, and the output layer's.

        The output layer's kernel is [output_size, tgt_vocab_size] and is the variable `kernel`. If the output layer is
        tied to an embedding, `kernel` is the projection's, which exists only if embedding and layers differ in width.
        """
        get, units = tf.compat.v1.get_variable, architecture.num_units
        start = self._output_start(architecture)
        if not architecture.ties_output:
            return None, tf.identity(get("kernel", [units, architecture.tgt_vocab_size], initializer=start))
        size = architecture.output_size
        narrow = None if size == units else tf.identity(get("kernel", [units, size], initializer=start))
        return narrow, tf.transpose(self._embed_target.table)

    def _embeddings_start(self, architecture: Any) -> InitialDistribution | None:
        """Return the initial distribution of the embeddings, if the family has its own; None: use the initializer."""
        return None

    def _output_start(self, architecture: Any) -> InitialDistribution | None:
        """Return the initial distribution of the output layer's `kernel`; None: use the initializer."""
        return None

    def _decoding(self, memory: Memory) -> Decoding:
        """Return the family's decoding, with a projection to the output layer's width if needed."""
        decoding = self._over(memory)
        return decoding if self._narrow is None else _Projected(decoding, self._narrow, self._output_device)

    @abstractmethod
    def _build(self, architecture: Any, dropout: Dropout, placement: Placement) -> None:
        """Create the family's variables: all layers between the embeddings and the output layer."""

    @abstractmethod
    def _read(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        """Encode embedded source words [time, batch, source_size] of these lengths, int32 [batch], 0 allowed."""

    @abstractmethod
    def _over(self, memory: Memory) -> Decoding:
        """Return the family's decoder for this memory."""

    def encode(self, source: tf.Tensor, source_lengths: tf.Tensor) -> Memory:
        """Encode source ids, int32 [time, batch], of these lengths, int32 [batch], and return the memory.

        With character_source the ids are [time, batch, WORD_LENGTH]. A language model ignores the ids and returns an
        empty memory for as many sentences as there are lengths.
        """
        if self.architecture.language_model or self._embed_source is None:
            batch = tf.shape(source_lengths)[0]
            nothing = tf.zeros(tf.stack([0, batch, self.architecture.num_units]), self._projection.dtype)
            return Memory(nothing, source_lengths, ())
        return self._read(self._drop_source.whole(self._embed_source(source)), source_lengths)

    def decoder(self, memory: Memory, words: tf.Tensor | None = None, closed: tf.Tensor | None = None) -> StepDecoder:
        """Return a decoder of this memory that runs step by step.

        Args:
            memory: memory of the source sentences.
            words: shortlist of target ids, int32 [words]: the decoder reads and returns indices into it instead of ids;
                None for the whole vocabulary.
            closed: with `words`, bool [batch, words]: True for a word that gets probability 0 in a sentence.
        """
        projection = self._projection
        if words is not None:
            with tf.device(self._output_device):
                if self.architecture.ties_output:  # gather rows of the embedding: transposing all of it is slow
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
        """Return the cross-entropy in nats, summed over all target positions except padding.

        Args:
            source: source ids as for `encode`, int32 [source time, batch] or [source time, batch, WORD_LENGTH].
            source_lengths: int32 [batch].
            target_in: int32 [target time, batch], starting with sos.
            target_out: int32 [target time, batch], ending with eos.
            target_lengths: int32 [batch], eos included; 0 for a sentence without loss.
            num_sampled: number of words in a sampled softmax, for training; 0 for the whole vocabulary, which a
                perplexity needs. (The TensorFlow NMT tutorial evaluates with the sample, too; its figures depend on the
                sample's size.)
            label_smoothing: probability spread evenly over all words, for training.
            r_drop: weight of the divergence between two passes with different masks (`nmt.model.parts.r_drop`); 0: one
                pass.

        Returns:
            scalars; 0 if there are no positions.

        Raises:
            ValueError: num_sampled exceeds the vocabulary, or there is no seed for sampling, or num_sampled is combined
                with label_smoothing or r_drop.
        """
        if r_drop:  # one batch holds both passes: masks are drawn for each of its sentences
            source, target_in = (tf.concat([ids, ids], 1) for ids in (source, target_in))
            source_lengths = tf.tile(source_lengths, [2])
        decoding = self._decoding(self.encode(source, source_lengths))
        outputs = self._drop_outputs(decoding.all_steps(self._drop_target.whole(self._embed_target(target_in))))
        # Padding is removed before the projection, the most expensive product of the model.
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
    """Decoder that reads target ids and returns logits, one target position at a time.

    Attributes:
        initial_state: state before the first target word, nested tensors [batch, ...].
        sources: tensors of the source sentences that each step reads, nested, [batch, ...].
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
        self._projection = tf.stop_gradient(projection)  # mixed precision then casts it once, before the search loop
        self._device = device
        self.initial_state = decoding.initial_state
        self.sources = decoding.sources if words is None else (decoding.sources, closed)

    def step(self, state: Any, token_ids: tf.Tensor, sources: Any = None) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Run one step, for any number of translations of each sentence.

        Args:
            state: state before this step, [batch * translations, ...]; the translations of a sentence are consecutive.
            token_ids: words of the previous step, int32 [batch * translations]: ids, or indices into the shortlist.
            sources: the attribute `sources`, or its rows for the sentences that are still translated; None for all.

        Returns:
            the next word's logits [batch * translations, tgt_vocab_size or words], the new state, and the attention
            weights [batch * translations, source time] (None without attention).
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
    """Return the logits [sentences * translations, words]; minus infinity where `closed` [sentences, words] is True."""
    sentences, words = tf.unstack(tf.shape(closed))
    grouped = tf.reshape(logits, tf.stack([sentences, -1, words]))
    grouped = tf.where(closed[:, None], tf.constant(-float("inf"), logits.dtype), grouped)
    return tf.reshape(grouped, tf.shape(logits))
