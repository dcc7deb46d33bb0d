"""The whole model: source and target ids -> loss, and the same variables step by step for search.

Attention-based encoder-decoder (Sutskever et al. 2014; Luong et al. 2015) in TensorFlow 1 graph code. Tensors
are time-major. Every variable is named as in the TensorFlow NMT tutorial's standard models.
"""

from __future__ import annotations

import tensorflow as tf

from nmt.model.lstm.architecture import Architecture
from nmt.model.lstm.decoder import BoundDecoder, Decoder, DecoderState
from nmt.model.lstm.encoder import Encoder, Memory
from nmt.model.lstm.gnmt_decoder import GNMTDecoder
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.embedding_tables import Lookup, make_embeddings
from nmt.model.parts.initializers import Initializer
from nmt.model.parts.placement import Placement
from nmt.model.parts.sampled_softmax import sampled_cross_entropy_sum
from nmt.model.parts.softmax_cross_entropy import cross_entropy_sum

_SAMPLE = 2**31 - 1  # folded into the seed for the sampled softmax; dropout folds in small numbers


class Translator:
    """A model in the current default graph.

    Making a second one in the same graph shares the variables of the first. The variables' type is that of
    the current variable scope (float32 unless set otherwise).

    Args:
        architecture: the model.
        initializer: what the weights start from; biases and the attention's scales have fixed starts.
        dropout: the probability to drop an input of a cell; 0 for evaluation and search.
        dropout_seed: int32 [2], wanted with dropout and with a sampled softmax; feed another one in each step.
            Equal seeds, equal masks and samples.
        num_gpus: over how many GPUs the layers are spread; 0 for the CPU.
    """

    def __init__(
        self,
        architecture: Architecture,
        initializer: Initializer,
        dropout: float = 0.0,
        dropout_seed: tf.Tensor | None = None,
        num_gpus: int = 0,
    ) -> None:
        self.architecture = architecture
        self._seed = dropout_seed
        placement = Placement(num_gpus)
        self._output_device = placement.output(architecture.num_decoder_layers)
        drop = Dropout(dropout, dropout_seed)
        units = architecture.num_units
        v1 = tf.compat.v1
        with v1.variable_scope(
            v1.get_variable_scope(),
            custom_getter=initializer.getter,
            reuse=v1.AUTO_REUSE,
        ):
            self._embed_source, self._embed_target = make_embeddings(architecture, placement)
            with v1.variable_scope("dynamic_seq2seq"):
                self._encoder = None if architecture.language_model else Encoder(architecture, drop, placement)
                standard = architecture.attention_architecture == "standard"
                make: type[Decoder] | type[GNMTDecoder] = Decoder if standard else GNMTDecoder
                self._decoder = make(architecture, drop, placement)
                with tf.device(self._output_device), v1.variable_scope("decoder/output_projection"):
                    self._projection = tf.identity(
                        v1.get_variable("kernel", [units, architecture.tgt_vocab_size]),
                    )

    def encode(self, source: tf.Tensor, source_lengths: tf.Tensor) -> Memory:
        """Read source ids, int32 [time, batch], of these lengths, int32 [batch].

        With character_source the ids are [time, batch, WORD_LENGTH]. A language model has no use for them: the
        lengths tell it how many sentences there are, whose memory is empty.
        """
        if self._encoder is None or self._embed_source is None:
            batch = tf.shape(source_lengths)[0]
            nothing = tf.zeros(tf.stack([0, batch, self.architecture.num_units]), self._projection.dtype)
            return Memory(nothing, source_lengths, ())
        return self._encoder(self._embed_source(source), source_lengths)

    def decoder(self, memory: Memory) -> StepDecoder:
        """A decoder over this memory, to be asked one step at a time."""
        return StepDecoder(self._decoder.over(memory), self._embed_target, self._projection, self._output_device)

    def loss_sum(
        self,
        source: tf.Tensor,
        source_lengths: tf.Tensor,
        target_in: tf.Tensor,
        target_out: tf.Tensor,
        target_lengths: tf.Tensor,
        num_sampled: int = 0,
    ) -> tf.Tensor:
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

        Returns:
            a scalar; 0 if no position counts.

        Raises:
            ValueError: more words to sample than there are, or no seed to draw them by.
        """
        if num_sampled > self.architecture.tgt_vocab_size:
            raise ValueError(
                f"num_sampled is {num_sampled}; the target vocabulary has {self.architecture.tgt_vocab_size} words"
            )
        if num_sampled and self._seed is None:
            raise ValueError(f"num_sampled is {num_sampled}, but there is no dropout_seed (int32 [2])")
        decoder = self._decoder.over(self.encode(source, source_lengths))
        outputs = decoder.all_steps(self._embed_target(target_in))
        # Padding leaves before the projection, which is the dearest product of the model.
        real = tf.transpose(tf.sequence_mask(target_lengths, tf.shape(target_out)[0]))
        positions = tf.where(tf.reshape(real, [-1]))[:, 0]
        rows = tf.gather(tf.reshape(outputs, [-1, self.architecture.num_units]), positions)
        labels = tf.gather(tf.reshape(target_out, [-1]), positions)
        with tf.device(self._output_device):
            if not num_sampled:
                return cross_entropy_sum(rows, self._projection, labels)
            seed = tf.random.experimental.stateless_fold_in(self._seed, _SAMPLE)
            return sampled_cross_entropy_sum(rows, self._projection, labels, num_sampled, seed)


class StepDecoder:
    """Ids in, logits out, one target position at a time.

    Attributes:
        initial_state: before the first target word.
    """

    def __init__(self, decoder: BoundDecoder, embed: Lookup, projection: tf.Tensor, device: str) -> None:
        self._decoder = decoder
        self._embed = embed
        self._projection = projection
        self._device = device
        self.initial_state = decoder.initial_state

    def step(
        self,
        state: DecoderState,
        token_ids: tf.Tensor,
    ) -> tuple[tf.Tensor, DecoderState, tf.Tensor | None]:
        """Read the words just written.

        Args:
            state: before them.
            token_ids: int32 [batch].

        Returns:
            logits [batch, tgt_vocab_size] of the next word, the state after the words, and the attention's
            weights [batch, source time] (None without attention).
        """
        output, state, weights = self._decoder.step(self._embed(token_ids), state)
        with tf.device(self._device):
            return tf.matmul(output, self._projection), state, weights
