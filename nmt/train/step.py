"""The training step: loss, gradients, clipping, update of the weights, and the figures of the batch.

The loss is the cross-entropy summed over the words, divided by the number of sentences or words of a rank
(Batch.divisor). So the mean of the ranks' gradients is the gradient of one process that has all sentences.

Gradients are merged (one row for each word of an embedding), clipped to a global norm (Pascanu, Mikolov, Bengio 2013),
and applied. They come from `tf.gradients` and go to `apply_gradients` of a TensorFlow 1 optimizer. Between these two
calls a library may average them over the ranks, and skip updates with gradients that are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from nmt.core.errors import InputError
from nmt.model.architecture import Architecture
from nmt.model.batch_input import BatchInput
from nmt.model.parts.dense import DIRECTION, LENGTH
from nmt.model.parts.initializers import Initializer
from nmt.model.registry import make_translator
from nmt.model.session import gpus
from nmt.options.config import Config
from nmt.options.training_options import PLATEAU, listed
from nmt.text.batches import Batch
from nmt.train.plateau import Plateau
from nmt.train.schedule import Schedule


def with_weight_decay(optimizer: Any, decay: float) -> Any:
    """Return a subclass of an optimizer class with decoupled weight decay: weights shrink apart from their gradients.

    Loshchilov, Hutter 2019, algorithm 2, line 12, in step t with the learning rate a_t of its schedule and the decay d:

        w_t = w_{t-1} - a_t (m_t / (sqrt(v_t) + epsilon) + d w_{t-1})

    Kernels and embeddings shrink, an embedding as a whole even if the gradient has only some rows. Of a kernel with
    weight normalization, only the length shrinks. Biases, gains and the vectors of attention do not shrink. A matrix
    shrinks each time its gradient is applied. So a library that accumulates gradients over several batches, or skips
    an update that is not finite, needs no code for weight decay.

    Args:
        optimizer: class of a TensorFlow 1 optimizer; its first argument is the learning rate, a scalar.
        decay: d; 0 returns `optimizer` itself.

    Returns:
        a class with the same arguments, variables and names.
    """
    if not decay:
        return optimizer

    class Decaying(optimizer):  # type: ignore[misc]
        """Optimizer that shrinks a matrix before it applies the matrix's gradient."""

        def __init__(self, rate: tf.Tensor, *args: Any, **kwargs: Any) -> None:
            super().__init__(rate, *args, **kwargs)
            self._part = rate * decay

        def _shrunk(self, gradient: tf.Tensor, weights: Any) -> list[Any]:
            kind = weights.name.rpartition("/")[2].partition(":")[0]
            if kind == DIRECTION or (weights.shape.rank < 2 and kind != LENGTH):
                return []
            with tf.control_dependencies([gradient]):  # the gradient depends on all earlier reads of the weights
                return [weights.assign_sub(self._part * weights.read_value(), read_value=False)]

        def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> Any:
            with tf.control_dependencies(self._shrunk(grad, handle)):
                return super()._resource_apply_dense(grad, handle)

        def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
            with tf.control_dependencies(self._shrunk(grad, handle)):
                return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

    return Decaying


v1 = tf.compat.v1


def make_optimizer(config: Config, rate: tf.Tensor) -> Any:
    """Return the TensorFlow optimizer of a run (SGD, or Adam: Kingma, Ba 2015) with this learning rate, a scalar."""
    kind: Any = v1.train.GradientDescentOptimizer
    moments: tuple[float, ...] = ()
    if config.optimizer == "adam":
        kind, moments = v1.train.AdamOptimizer, (config.adam_beta1, config.adam_beta2, config.adam_epsilon)
    return with_weight_decay(kind, config.weight_decay)(rate, *moments)


class StepResult(NamedTuple):
    """Result of a step on this rank.

    Attributes:
        loss_sum: cross-entropy in nats, summed over this rank's target words.
        target_words: number of target words of this rank, end marks counted.
        source_words: number of source words of this rank.
        grad_norm: global norm of the gradients (averaged over the ranks, if a library does so) before clipping.
        clipped_norm: global norm of the gradients after clipping.
        learning_rate: the rate that was used.
        global_step: number of updates done, this one counted.
        left_out: whether the update overflowed and was skipped; losses and norms are then invalid.
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
    """The training graph, built in the current default graph; `run` does one step in a session of that graph.

    Args:
        architecture: architecture of the model.
        initializer: initial weights.
        config: options of the run.
        schedule: learning rate of each step.

    Attributes:
        leaves_out: whether an update that overflows is skipped.
        decay: decay of the learning rate by evaluations, in addition to its schedule; None if there is none.

    Raises:
        ValueError: the initializer has no vectors for the architecture's pretrained embeddings.
    """

    def __init__(
        self, architecture: Architecture, initializer: Initializer, config: Config, schedule: Schedule
    ) -> None:
        for name in architecture.pretrained_names:
            if name is not None and name not in initializer.given:
                raise ValueError(f"{name} is not trained: the initializer must be given its values")
        self._input = BatchInput(architecture)
        self._seed = v1.placeholder(tf.int32, [2], "dropout_seed")
        translator = make_translator(architecture, initializer, config, self._seed, gpus(config))
        losses = self._input.losses(
            translator,
            num_sampled=config.num_sampled_softmax,
            label_smoothing=config.label_smoothing,
            r_drop=config.r_drop,
        )
        # int32 as in the TensorFlow NMT tutorial; TensorFlow's own function would create an int64 global step.
        step = v1.get_variable(
            "global_step", [], tf.int32, v1.zeros_initializer(), trainable=False,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.GLOBAL_STEP],
        )  # fmt: skip
        self._step = step
        self.leaves_out = config.loss_scale not in (None, "none")
        self.decay = Plateau(config) if config.decay_scheme == PLATEAU else None
        rate = schedule.rate(step)
        rate = rate if self.decay is None else self.decay.lowered(rate)
        weights = trained(v1.trainable_variables(), listed(config.freeze), architecture)
        loss = normalized(losses.trained, self._input.divisor)
        colocate = config.colocate_gradients_with_ops
        gradients = [merged(one) for one in v1.gradients(loss, weights, colocate_gradients_with_ops=colocate)]
        self._max_gradient_norm = config.max_gradient_norm
        clipped, norm = tf.clip_by_global_norm(gradients, config.max_gradient_norm)
        update = make_optimizer(config, rate).apply_gradients(zip(clipped, weights, strict=True), global_step=step)
        with tf.control_dependencies([update]):
            done = tf.identity(step.read_value())  # fetching the variable could read it before the update
        self._fetches = (losses.words, norm, rate, done)

    def updates(self, session: Any) -> int:
        """Return the number of updates done."""
        return int(session.run(self._step))

    def run(self, session: Any, batch: Batch, seed: np.ndarray) -> StepResult:
        """Update the weights with the batch; `seed`, int32 [2], is the seed of dropout and the sampled softmax."""
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
    """Return the training loss: nats summed over target words, divided by a number of sentences or words (scalars).

    `divisor` is the number in the batch of all ranks / number of ranks. Then the mean over the ranks is the loss that
    one process computes from the whole batch, even if the ranks' slices differ in size.
    """
    return loss_sum / tf.cast(divisor, loss_sum.dtype)


def merged(gradient: Any) -> Any:
    """Return the gradient with one row for each index; dense gradients and None are returned unchanged.

    The gradient of an embedding lookup has a row for each occurrence of a word. The norm over these rows depends on how
    a batch is distributed over the ranks. The norm over the sums of each word's rows does not.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    words, place = tf.unique(gradient.indices)
    rows = tf.cond(
        tf.size(words) < tf.size(gradient.indices),
        lambda: tf.math.unsorted_segment_sum(gradient.values, place, tf.size(words)),
        lambda: tf.identity(gradient.values),  # gradients averaged over the ranks are merged already: words == indices
    )
    return tf.IndexedSlices(rows, words, gradient.dense_shape)


def dropout_seed(seed: int, rank: int, step: int) -> np.ndarray:
    """Return the dropout seed of a rank in a step, int32 [2]."""
    return np.random.SeedSequence([seed, rank, step]).generate_state(2).view(np.int32)


_SCOPES = {  # of the parts that --freeze names; the first that fits counts
    "source_embedding": ("embeddings/encoder/", "embeddings/embedding_share"),
    "target_embedding": ("embeddings/decoder/", "embeddings/embedding_share"),
    "output": ("dynamic_seq2seq/decoder/output_projection/",),
    "encoder": ("dynamic_seq2seq/encoder/",),
    "decoder": ("dynamic_seq2seq/decoder/",),
}


def parts_of(name: str) -> set[str]:
    """Return the parts that a variable belongs to: one, or both embeddings for a shared table.

    >>> parts_of("dynamic_seq2seq/decoder/output_projection/kernel")
    {'output'}
    """
    found = {part for part, scopes in _SCOPES.items() if name.startswith(scopes)}
    return {"output"} if "output" in found else found


def trained(variables: Sequence[Any], frozen: Sequence[str], architecture: Architecture) -> list[Any]:
    """Return the variables that are in no frozen part.

    Args:
        variables: variables of a model.
        frozen: names of parts.
        architecture: architecture of the model.

    Raises:
        InputError: no variable is left.
    """
    kept = [variable for variable in variables if not parts_of(variable.op.name) & set(frozen)]
    if not kept:
        tied = " (the output layer is an embedding here)" if architecture.ties_output else ""
        raise InputError(f"--freeze={','.join(frozen)} leaves nothing to train{tied}: name fewer parts")
    return kept
