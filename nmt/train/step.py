"""The training step: loss, gradients, clipping, update of the weights, and the figures of the batch.

Loss: cross-entropy summed over the words, divided by the sentences or words of a rank (Batch.divisor), so that the mean
of the ranks' gradients is the gradient of one process that has all sentences. Gradients are merged (one row for each
word of an embedding), clipped to a global norm (Pascanu, Mikolov, Bengio 2013), and applied. They come from
`tf.gradients` and go to a TensorFlow 1 optimizer's `apply_gradients`: between these two a library may average them over
the ranks, and leave out what is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.batch_input import BatchInput
from nmt.model.parts.dense import DIRECTION, LENGTH
from nmt.model.parts.dropout import OtherDropout
from nmt.model.parts.initializers import Initializer
from nmt.model.registry import make_translator
from nmt.text.batches import Batch
from nmt.train.plateau import Decay, NoDecay, Plateau, PlateauSettings
from nmt.train.schedule import Schedule


def with_weight_decay(optimizer: Any, decay: float) -> Any:
    """The same kind of optimizer with decoupled weight decay: weights shrink apart from their gradients.

    Loshchilov, Hutter 2019, algorithm 2, line 12, in step t with the learning rate a_t of its schedule and the decay d:

        w_t = w_{t-1} - a_t (m_t / (sqrt(v_t) + epsilon) + d w_{t-1})

    Matrices shrink: kernels and embeddings, these as a whole where a step has gradients of some rows alone; of a
    normalised kernel the length. Biases, gains and an attention's vectors do not. It is done where a gradient is
    applied, and so as often: a library that applies them after several batches, or leaves one out that is not finite,
    need not know of it.

    Args:
        optimizer: a class of TensorFlow 1 optimizers, whose first argument is the learning rate, a scalar.
        decay: d; 0 for none.

    Returns:
        a class with the same arguments, variables and names.
    """
    if not decay:
        return optimizer

    class Decaying(optimizer):  # type: ignore[misc]
        """Shrinks a matrix before its gradient is applied."""

        def __init__(self, rate: tf.Tensor, *args: Any, **kwargs: Any) -> None:
            super().__init__(rate, *args, **kwargs)
            self._part = rate * decay

        def _shrunk(self, gradient: tf.Tensor, weights: Any) -> list[Any]:
            kind = weights.name.rpartition("/")[2].partition(":")[0]
            if kind == DIRECTION or (weights.shape.rank < 2 and kind != LENGTH):
                return []
            with tf.control_dependencies([gradient]):  # which all that reads the weights has led to
                return [weights.assign_sub(self._part * weights.read_value(), read_value=False)]

        def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> Any:
            with tf.control_dependencies(self._shrunk(grad, handle)):
                return super()._resource_apply_dense(grad, handle)

        def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
            with tf.control_dependencies(self._shrunk(grad, handle)):
                return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

    return Decaying


v1 = tf.compat.v1


@dataclass(frozen=True)
class Optimization:
    """How weights are updated.

    Attributes:
        optimizer: "sgd", or "adam" (Kingma, Ba 2015).
        schedule: the learning rate of each step.
        plateau: when evaluations lower it; None: never.
        max_gradient_norm: gradients are clipped to this global norm.
        dropout: probability that a number of what a layer reads is dropped; in a Transformer, of what its parts give.
        output_dropout: probability that a number of what the output layer reads is dropped.
        dropout_mask: "step", or "sentence": these two, and `activation_dropout`, drop the same numbers at all times of
            a sentence.
        src_word_dropout: probability that a source word is dropped as a whole.
        tgt_word_dropout: the same for a target word that the decoder reads.
        attention_dropout: the same for a weight of attention, where the family has such a dropout.
        activation_dropout: the same for a number inside a feed-forward layer; likewise.
        num_sampled_softmax: words that the softmax is taken over (`nmt.model.parts.sampled_softmax`); 0 for all. The
            loss, and the perplexity printed in training, are then those of the sample.
        label_smoothing: probability that is asked for of all words alike; the loss that is printed is without it.
        r_drop: what the divergence of two passes with other dropout counts; 0: one pass. The loss that is printed is
            without it, the mean of both.
        adam_beta1: of Adam, what is left of the mean of gradients after a step.
        adam_beta2: the same for the mean of their squares.
        adam_epsilon: added to the root of the latter.
        weight_decay: part of each matrix that a step takes away, times the learning rate.
        colocate_gradients_with_ops: whether gradients are computed on the device of what they are gradients of.
        loss_scale: what a library multiplies the loss by, which then leaves out updates that overflow; None or "none":
            nothing.

    Raises:
        ValueError: an unknown optimizer.
    """

    optimizer: str
    schedule: Schedule
    max_gradient_norm: float
    dropout: float = 0.0
    output_dropout: float = 0.0
    dropout_mask: str = "step"
    src_word_dropout: float = 0.0
    tgt_word_dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    num_sampled_softmax: int = 0
    label_smoothing: float = 0.0
    r_drop: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    colocate_gradients_with_ops: bool = True
    loss_scale: str | None = None
    plateau: PlateauSettings | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"optimizer is {self.optimizer!r}; it must be 'sgd' or 'adam'")

    def build(self, rate: tf.Tensor) -> Any:
        """The TensorFlow optimizer."""
        kind: Any = v1.train.GradientDescentOptimizer
        moments: tuple[float, ...] = ()
        if self.optimizer == "adam":
            kind, moments = v1.train.AdamOptimizer, (self.adam_beta1, self.adam_beta2, self.adam_epsilon)
        return with_weight_decay(kind, self.weight_decay)(rate, *moments)


class StepResult(NamedTuple):
    """What a step did, on this rank.

    Attributes:
        loss_sum: cross-entropy in nats, summed over this rank's target words.
        target_words: target words of this rank, end marks counted.
        source_words: source words of this rank.
        grad_norm: global norm of the gradients (averaged over the ranks, if a library does so) before they
            are clipped.
        clipped_norm: the same after.
        learning_rate: the rate that was used.
        global_step: updates done, this one counted.
        left_out: its update overflowed, and was left out: the losses and norms do not count.
    """

    loss_sum: float
    target_words: int
    source_words: int
    grad_norm: float
    clipped_norm: float
    learning_rate: float
    global_step: int
    left_out: bool = False


class TrainStep:
    """The training graph, built in the current default graph; `run` does one step in a session of it.

    Attributes:
        leaves_out: whether an update that overflows is left out.
        decay: what lowers the learning rate beside its schedule.

    Raises:
        ValueError: the initializer has no vectors for the architecture's pretrained embeddings.
    """

    def __init__(
        self, architecture: Architecture, initializer: Initializer, optimization: Optimization, num_gpus: int = 0
    ) -> None:
        for name in architecture.pretrained_names:
            if name is not None and name not in initializer.given:
                raise ValueError(f"{name} is not trained: the initializer must be given its values")
        self._input = BatchInput(architecture)
        self._seed = v1.placeholder(tf.int32, [2], "dropout_seed")
        other_dropout = OtherDropout(
            optimization.src_word_dropout,
            optimization.tgt_word_dropout,
            optimization.output_dropout,
            optimization.attention_dropout,
            optimization.activation_dropout,
        )
        translator = make_translator(
            architecture,
            initializer,
            optimization.dropout,
            self._seed,
            num_gpus,
            other_dropout,
            optimization.dropout_mask,
        )
        losses = self._input.losses(
            translator,
            num_sampled=optimization.num_sampled_softmax,
            label_smoothing=optimization.label_smoothing,
            r_drop=optimization.r_drop,
        )
        # int32 because that is the tutorial's type; by hand because TensorFlow's own global step is int64.
        step = v1.get_variable(
            "global_step", [], tf.int32, v1.zeros_initializer(), trainable=False,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.GLOBAL_STEP],
        )  # fmt: skip
        self._step = step
        self.leaves_out = optimization.loss_scale not in (None, "none")
        self.decay: Decay = NoDecay() if optimization.plateau is None else Plateau(optimization.plateau)
        rate = self.decay.lowered(optimization.schedule.rate(step))
        weights = v1.trainable_variables()
        loss = normalized(losses.trained, self._input.divisor)
        colocate = optimization.colocate_gradients_with_ops
        gradients = [merged(one) for one in v1.gradients(loss, weights, colocate_gradients_with_ops=colocate)]
        self._max_gradient_norm = optimization.max_gradient_norm
        clipped, norm = tf.clip_by_global_norm(gradients, optimization.max_gradient_norm)
        update = optimization.build(rate).apply_gradients(zip(clipped, weights, strict=True), global_step=step)
        with tf.control_dependencies([update]):
            done = tf.identity(step.read_value())  # after the update, which fetching the variable would not promise
        self._fetches = (losses.words, norm, rate, done)

    def updates(self, session: Any) -> int:
        """How many updates have been done."""
        return int(session.run(self._step))

    def run(self, session: Any, batch: Batch, seed: np.ndarray) -> StepResult:
        """Updates the weights by the batch; `seed`, int32 [2], decides what dropout drops and what is sampled."""
        loss_sum, norm, rate, step = session.run(self._fetches, self._input.feed(batch) | {self._seed: seed})
        return StepResult(
            loss_sum=float(loss_sum),
            target_words=int(batch.target_lengths.sum()),
            source_words=int(batch.source_lengths[batch.target_lengths > 0].sum()),
            grad_norm=float(norm),
            clipped_norm=min(float(norm), self._max_gradient_norm),
            learning_rate=float(rate),
            global_step=int(step),
        )


def normalized(loss_sum: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    """The training loss: nats summed over target words, divided by the number of sentences or words (both scalars).

    With `divisor` = those in the batch of all ranks / number of ranks, the mean of this over the ranks is what one
    process gets from the whole batch, whether or not the ranks' slices are equally large.
    """
    return loss_sum / tf.cast(divisor, loss_sum.dtype)


def merged(gradient: Any) -> Any:
    """The same gradient with one row for each index; dense gradients and None pass.

    A lookup's gradient has a row for each occurrence of a word. The norm over such rows depends on how a
    batch is cut into ranks; the norm over the words' sums does not.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    words, place = tf.unique(gradient.indices)
    rows = tf.cond(
        tf.size(words) < tf.size(gradient.indices),
        lambda: tf.math.unsorted_segment_sum(gradient.values, place, tf.size(words)),
        lambda: tf.identity(gradient.values),  # as ranks have averaged them; words are the indices then
    )
    return tf.IndexedSlices(rows, words, gradient.dense_shape)


def dropout_seed(seed: int, rank: int, step: int) -> np.ndarray:
    """The seed of one rank's dropout in one step, int32 [2]."""
    return np.random.SeedSequence([seed, rank, step]).generate_state(2).view(np.int32)
