"""Exclusions: the table of pairs of features that exclude each other, with the reason and the remedy.

Other pairs of these features work together, in the order of the stages (``tfdist.updates.order``). The error messages
are made from this table. The documentation shows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Two features that exclude each other.

    Attributes:
      one: first feature, by its name in the documentation.
      other: second feature, by its name in the documentation.
      why: reason why the two cannot be combined.
      remedy: what the user can do.
    """

    one: str
    other: str
    why: str
    remedy: str

    def told(self, one: str, other: str) -> str:
        """Return the error message.

        Args:
          one: the first feature as it was found, for example a setting with its value, or an object.
          other: the second feature as it was found.
        """
        return f"{one}, and {other}: {self.why}; {self.remedy}"


_ONE_OF_THEM = "leave one of them out"
_NO_JOIN = "leave join out, and give all ranks the same number of steps (tfdist.shard)"
_LOCAL = "local steps (`sync`)"
_HELD = "`accumulate_steps`"

LOCAL_AND_HELD = Exclusion(_LOCAL, _HELD, "each step of a block is applied", _ONE_OF_THEM)
LOCAL_AND_SCALED = Exclusion(
    _LOCAL,
    "`loss_scale`",
    "an overflow is left out where the ranks average gradients, and local steps do not average",
    _ONE_OF_THEM,
)
LOCAL_AND_SPARSE = Exclusion(
    _LOCAL,
    "`sparse`",
    "this setting applies to exchanged gradients, and blocks exchange changes of variables",
    "leave `sparse` out, or use a warm-up, which exchanges gradients (`block_warmup`)",
)
FEW_BITS_AND_GRADIENTS = Exclusion(
    "`compression=int4`, `compression=int2`",
    "averaged gradients (`sync=gradients`)",
    "so few bits are for the changes of a block of local steps, whose rounding errors the next blocks repair",
    "set compression=int8, or exchange blocks (sync=diloco)",
)
STREAMED_AND_STATE = Exclusion(
    "`block_fragments`, `block_delay`",
    "`block_state=reset`, `block_state=average`",
    "variables are exchanged while others are in the middle of a block, and the optimizer's state belongs to all",
    "set block_state=keep",
)
LOCAL_AND_EAGER = Exclusion(
    _LOCAL,
    "an optimizer that applies gradients eagerly",
    "the graph or function that trains counts the steps of a block",
    "put the training step into a tf.function, or use sync=gradients",
)
LOCAL_AND_OWN_BEGINNING = Exclusion(
    _LOCAL,
    "`tfdist.disable_broadcast`",
    "a block starts from variables that are equal on all ranks, and the broadcast makes them equal",
    "build the training with broadcasts",
)
LOCAL_AND_JOIN = Exclusion(
    _LOCAL,
    "`tfdist.join`",
    "a rank without data cannot contribute the variables that it has trained in its block",
    _NO_JOIN,
)
PLAIN_AND_FILTER = Exclusion(
    "`sync=average`",
    "`block_momentum`, `block_learning_rate`, `block_scale`, `block_nesterov`",
    "the average is momentum 0 and rate 1",
    "choose sync=bmuf, or leave the block settings out",
)
SCALE_AND_RATE = Exclusion(
    "`block_scale`",
    "`block_learning_rate`",
    "the scale C is another way to give the rate: rate = C x ranks x (1 - momentum)",
    _ONE_OF_THEM,
)
HELD_AND_EAGER = Exclusion(
    _HELD,
    "an optimizer that applies gradients eagerly",
    "an eager step exchanges its gradients before the optimizer gets them",
    "put the training step into a tf.function (for model.fit: leave run_eagerly out), or leave accumulate_steps out",
)
HELD_AND_ASSIGNED = Exclusion(
    _HELD,
    "gradients that `assign` or a raw operation applies",
    "gradients are accumulated where an optimizer of TensorFlow or Keras applies them, in a graph or a tf.function",
    "compute them and apply them with an optimizer, both in the same graph or tf.function, or leave accumulate_steps "
    "out",
)
HELD_AND_KERAS = Exclusion(
    _HELD,
    "Keras's `gradient_accumulation_steps`",
    "tfdist exchanges once in `accumulate_steps` steps, Keras's accumulation in each step",
    _ONE_OF_THEM,
)
HELD_AND_OVERWRITTEN = Exclusion(
    _HELD, "float8 of Keras (`quantize`)", "the largest values of the steps would be added up", _ONE_OF_THEM
)
HELD_AND_REDUCER = Exclusion(_HELD, "`extend.use_reducer`", "a reducer combines each step separately", _ONE_OF_THEM)
HELD_AND_JOIN = Exclusion(
    _HELD,
    "`tfdist.join`",
    "a rank without data cannot contribute the gradients that it has accumulated",
    "leave join out, and have all ranks train the same number of steps, or leave accumulate_steps out",
)
EXCHANGE_AND_JOIN = Exclusion(
    "`extend.use_exchange`, `engine=collectives`, `engine=nccl`",
    "`tfdist.join`",
    "a rank without data does not run the operations that combine gradients",
    _NO_JOIN,
)
SCALED_AND_KERAS = Exclusion(
    "`loss_scale`", "Keras's `LossScaleOptimizer`", "this optimizer scales the loss already", _ONE_OF_THEM
)
LARC_TWICE = Exclusion("`larc`", "`tfdist.larc`", "the optimizer has LARC already", _ONE_OF_THEM)
HOROVOD_AND_AUTOMATIC = Exclusion(
    "`tfdist.horovod`",
    "`accumulate_steps`, `sync`, `larc`, `loss_scale`, `divergence`",
    "these settings apply to automatic averages, and a Horovod script calls each reduction explicitly",
    "use Horovod's backward_passes_per_step, Keras's LossScaleOptimizer, or import tfdist alone",
)
HOROVOD_AND_STAGE = Exclusion(
    "`tfdist.horovod`",
    "`extend.add_stage`",
    "a Horovod script calls each reduction explicitly, and no update goes through stages",
    "import tfdist alone, or leave the stage out",
)

TABLE = (
    *(LOCAL_AND_HELD, LOCAL_AND_SCALED, LOCAL_AND_SPARSE, LOCAL_AND_EAGER, LOCAL_AND_OWN_BEGINNING, LOCAL_AND_JOIN),
    *(PLAIN_AND_FILTER, SCALE_AND_RATE, FEW_BITS_AND_GRADIENTS, STREAMED_AND_STATE),
    *(HELD_AND_EAGER, HELD_AND_ASSIGNED, HELD_AND_KERAS, HELD_AND_OVERWRITTEN, HELD_AND_REDUCER, HELD_AND_JOIN),
    *(EXCHANGE_AND_JOIN, SCALED_AND_KERAS, LARC_TWICE, HOROVOD_AND_AUTOMATIC, HOROVOD_AND_STAGE),
)


def rows() -> Iterator[str]:
    """Yield the rows of the table in the documentation, in Markdown."""
    for row in TABLE:
        yield f"| {row.one} | {row.other} | {row.why} | {row.remedy} |"
