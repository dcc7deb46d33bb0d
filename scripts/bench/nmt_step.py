"""NMT step: the training step that scripts/bench/train_nmt measures, with its sizes, operations, speed and profile."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rounds import ROOT

if TYPE_CHECKING:
    from nmt.model.architecture import Architecture
    from nmt.text.batches import Batch
    from nmt.train.step import TrainStep

sys.path.insert(0, str(ROOT))
TIME = 25  # words of the longest sentence on each side
_WARM_UP_STEPS = 3
_PRODUCT = 1024  # rows and columns of the matrices for the measurement of a core's rate
_TRACED_STEPS = 5


class Size(NamedTuple):
    """The sizes of a model.

    Attributes:
        units: width of the layers.
        source_words: size of the source vocabulary.
        target_words: size of the target vocabulary.
        layers: layers on each side of a Transformer; 0 for an LSTM with a bidirectional layer and two decoder layers.
        heads: attention heads of a Transformer.
        inner: width of a Transformer's feed-forward layers.
    """

    units: int
    source_words: int
    target_words: int
    layers: int = 0
    heads: int = 0
    inner: int = 0

    def architecture(self) -> Architecture:
        """Return nmt's architecture of these sizes."""
        from nmt.model.lstm.architecture import LSTMArchitecture
        from nmt.model.transformer.architecture import TransformerArchitecture

        if not self.layers:
            words = self.source_words, self.target_words
            return LSTMArchitecture(*words, self.units, 2, 2, encoder_type="bi", attention="scaled_luong")
        return TransformerArchitecture(
            self.source_words,
            self.target_words,
            self.units,
            self.layers,
            self.layers,
            num_heads=self.heads,
            feed_forward_size=self.inner,
        )


SIZES = {
    "T": Size(256, 8000, 8000),
    "M": Size(512, 17191, 7709),
    "transformer-tiny": Size(128, 8000, 8000, 4, 4, 256),
    "transformer-small": Size(256, 8000, 8000, 4, 8, 1024),
}


class Cost(NamedTuple):
    """The number and the time of a step's operations of one type."""

    name: str
    times: float
    milliseconds: float


def flop(size: Size, sentences: int, filled: float) -> float:
    """Return the floating-point operations of a step's products: forward, and backward with twice as many."""
    units, words = size.units, sentences * TIME * filled
    output = units * size.target_words
    if size.layers:
        own, looked = 4 * units * units, 2 * TIME * filled * units
        feed_forward = 2 * units * size.inner
        encoder = size.layers * (own + looked + feed_forward)
        decoder = size.layers * (2 * own + 2 * looked + feed_forward)
        return 3 * 2 * words * (encoder + decoder + output)
    encoder = 2 * (2 * units) * 4 * units
    keys = 2 * units * units
    decoder = (3 * units + 2 * units) * 4 * units + 3 * units * units
    attention = TIME * filled * 3 * units
    return 3 * 2 * words * (encoder + keys + decoder + attention + output)


def train(size: Size, options: argparse.Namespace, wait: Callable[[], None]) -> dict[str, float]:
    """Train on random batches; `wait` returns when the measurement is to begin.

    Returns:
        medians of a step's seconds and processor seconds, its words, the share of positions that are words. Also one
        core's operations a second in a product of matrices.
    """
    seconds, processor_seconds, words, rates = [], [], [], []
    with _training(size, options) as (session, step, batches, product, seed):
        for batch in batches[:_WARM_UP_STEPS]:
            step.run(session, batch, seed(0))
        session.run(product)
        wait()
        for number in range(options.steps):
            begin = time.process_time()
            session.run(product)
            rates.append(2 * _PRODUCT**3 / (time.process_time() - begin))
            begin, processor_begin = time.perf_counter(), time.process_time()
            result = step.run(session, batches[number % len(batches)], seed(number))
            seconds.append(time.perf_counter() - begin)
            processor_seconds.append(time.process_time() - processor_begin)
            words.append(result.source_words + result.target_words)
    return {
        "words": statistics.mean(words),
        "seconds": statistics.median(seconds),
        "processor_seconds": statistics.median(processor_seconds),
        "filled": statistics.mean(words) / (2 * TIME * options.batch),
        "product_flop_per_second": statistics.median(rates),
    }


def costliest(size: Size, options: argparse.Namespace) -> list[Cost]:
    """Return the time of a step's operations by type, from TensorFlow's tracing, the longest time first."""
    from tensorflow import compat

    v1 = compat.v1
    microseconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    with _training(size, options) as (session, step, batches, _, seed):
        for batch in batches[:_WARM_UP_STEPS]:
            step.run(session, batch, seed(0))
        for number in range(_TRACED_STEPS):
            about = v1.RunMetadata()
            step.run(_Traced(session, about), batches[number % len(batches)], seed(number))
            for node in (node for device in about.step_stats.dev_stats for node in device.node_stats):
                # "name = Type(inputs)"
                kind = node.timeline_label.partition(" = ")[2].partition("(")[0] or node.node_name
                microseconds[kind] += node.op_end_rel_micros - node.op_start_rel_micros
                counts[kind] += 1
    found = [Cost(k, counts[k] / _TRACED_STEPS, microseconds[k] / 1e3 / _TRACED_STEPS) for k in counts]
    return sorted(found, key=lambda cost: -cost.milliseconds)


class _Traced:
    """A session that traces its runs."""

    def __init__(self, session: Any, about: Any) -> None:
        self._session, self._about = session, about

    def run(self, fetches: Any, feed: Any) -> Any:
        from tensorflow import compat

        options = compat.v1.RunOptions(trace_level=compat.v1.RunOptions.SOFTWARE_TRACE)
        return self._session.run(fetches, feed, options=options, run_metadata=self._about)


@contextmanager
def _training(
    size: Size, options: argparse.Namespace
) -> Iterator[tuple[Any, TrainStep, list[Batch], Any, Callable[[int], np.ndarray]]]:
    """Yield a session, its training step, batches, a product of matrices, and a function for a step's seed."""
    import tensorflow as tf

    import tfdist
    from nmt.model.parts.initializers import initializer
    from nmt.model.session import session_config
    from nmt.options.config import Config
    from nmt.train.schedule import Schedule
    from nmt.train.step import TrainStep, dropout_seed

    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    config = Config(dropout=options.dropout, num_intra_threads=1)
    random = [np.random.RandomState(100 * tfdist.rank() + k) for k in range(4)]
    batches = [random_batch(one, size, options.batch, options.shortest) for one in random]
    in_bfloat16 = options.precision == "bfloat16"
    tfdist.configure(mixed_precision="bf16" if in_bfloat16 else "none")
    with tf.Graph().as_default():
        step = TrainStep(size.architecture(), initializer("uniform", 0.1, 1), config, Schedule(0.1, 10**6))
        kind = tf.bfloat16 if in_bfloat16 else tf.float32
        matrix = v1.get_variable("matrix", [_PRODUCT, _PRODUCT], kind, v1.ones_initializer(), trainable=False)
        product = tf.matmul(matrix, matrix).op
        initial = v1.global_variables_initializer()
        with v1.Session(config=session_config(config)) as session:
            session.run(initial)
            yield session, step, batches, product, lambda number: dropout_seed(0, tfdist.rank(), number)


def random_batch(random: np.random.RandomState, size: Size, sentences: int, shortest: int) -> Batch:
    """Return a batch of random words; sentences have random lengths, and the first one the greatest length."""
    from nmt.text.batches import Batch

    lengths = random.randint(shortest, TIME + 1, sentences).astype(np.int32)
    lengths[0] = TIME
    source = random.randint(3, size.source_words, (TIME, sentences)).astype(np.int32)
    target_in, target_out = random.randint(3, size.target_words, (2, TIME, sentences)).astype(np.int32)
    return Batch(source, lengths, target_in, target_out, lengths, float(sentences), float(sentences))
