"""The whole model: source and target ids -> loss, and the same variables step by step for search.

Attention-based encoder-decoder (Sutskever et al. 2014; Luong et al. 2015) in TensorFlow 1 graph code. Tensors
are time-major. Every variable is named as in the TensorFlow NMT tutorial's standard models.
"""

from __future__ import annotations

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.decoder import BoundDecoder, Decoder, DecoderState
from nmt.model.dropout import Dropout
from nmt.model.encoder import Encoder, Memory
from nmt.model.initializers import Initializer
from nmt.model.output import cross_entropy_sum


class Translator:
    """A model in the current default graph.

    Making a second one in the same graph shares the variables of the first. The variables' type is that of
    the current variable scope (float32 unless set otherwise).

    Args:
        architecture: the model.
        initializer: what the weights start from; biases and the attention's scales have fixed starts.
        dropout: the probability to drop an input of a cell; 0 for evaluation and search.
        dropout_seed: int32 [2], wanted with dropout; feed another one in each step. Equal seeds, equal masks.
    """

    def __init__(
        self,
        architecture: Architecture,
        initializer: Initializer,
        dropout: float = 0.0,
        dropout_seed: tf.Tensor | None = None,
    ) -> None:
        self.architecture = architecture
        drop = Dropout(dropout, dropout_seed)
        units = architecture.num_units
        v1 = tf.compat.v1
        with v1.variable_scope(
            v1.get_variable_scope(),
            custom_getter=initializer.getter,
            reuse=v1.AUTO_REUSE,
        ):
            with v1.variable_scope("embeddings/encoder"):
                self._source_embedding = v1.get_variable(
                    "embedding_encoder",
                    [architecture.src_vocab_size, units],
                )
            with v1.variable_scope("embeddings/decoder"):
                self._target_embedding = v1.get_variable(
                    "embedding_decoder",
                    [architecture.tgt_vocab_size, units],
                )
            with v1.variable_scope("dynamic_seq2seq"):
                self._encoder = Encoder(architecture, drop)
                self._decoder = Decoder(architecture, drop)
                with v1.variable_scope("decoder/output_projection"):
                    self._projection = tf.identity(
                        v1.get_variable("kernel", [units, architecture.tgt_vocab_size]),
                    )

    def encode(self, source: tf.Tensor, source_lengths: tf.Tensor) -> Memory:
        """Read source ids, int32 [time, batch], of these lengths, int32 [batch]."""
        return self._encoder(tf.nn.embedding_lookup(self._source_embedding, source), source_lengths)

    def decoder(self, memory: Memory) -> StepDecoder:
        """A decoder over this memory, to be asked one step at a time."""
        return StepDecoder(self._decoder.over(memory), self._target_embedding, self._projection)

    def loss_sum(
        self,
        source: tf.Tensor,
        source_lengths: tf.Tensor,
        target_in: tf.Tensor,
        target_out: tf.Tensor,
        target_lengths: tf.Tensor,
    ) -> tf.Tensor:
        """Cross-entropy in nats, summed over the target positions that are no padding.

        Args:
            source: int32 [source time, batch].
            source_lengths: int32 [batch].
            target_in: int32 [target time, batch], starting with sos.
            target_out: int32 [target time, batch], ending with eos.
            target_lengths: int32 [batch], eos included; 0 for a sentence that does not count.

        Returns:
            a scalar; 0 if no position counts.
        """
        decoder = self._decoder.over(self.encode(source, source_lengths))
        outputs = decoder.all_steps(tf.nn.embedding_lookup(self._target_embedding, target_in))
        # Padding leaves before the projection, which is the dearest product of the model.
        real = tf.transpose(tf.sequence_mask(target_lengths, tf.shape(target_out)[0]))
        positions = tf.where(tf.reshape(real, [-1]))[:, 0]
        rows = tf.gather(tf.reshape(outputs, [-1, self.architecture.num_units]), positions)
        labels = tf.gather(tf.reshape(target_out, [-1]), positions)
        return cross_entropy_sum(rows, self._projection, labels)


class StepDecoder:
    """Ids in, logits out, one target position at a time.

    Attributes:
        initial_state: before the first target word.
    """

    def __init__(self, decoder: BoundDecoder, embedding: tf.Variable, projection: tf.Tensor) -> None:
        self._decoder = decoder
        self._embedding = embedding
        self._projection = projection
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
        embedded = tf.nn.embedding_lookup(self._embedding, token_ids)
        output, state, weights = self._decoder.step(embedded, state)
        return tf.matmul(output, self._projection), state, weights
