"""Exclusions: which two features have no meaning together, why, and what to do: one table.

What other pairs of these mean together follows from the order of the stages (``tfdist.updates.order``). The messages of
refusals and the table in tfdist/README.md are made of this one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Two features that exclude each other.

    Attributes:
      one: as a reader of the documentation knows it.
      other: likewise.
      why: there is no meaning.
      remedy: what to do.
    """

    one: str
    other: str
    why: str
    remedy: str

    def told(self, one: str, other: str) -> str:
        """The message of a refusal.

        Args:
          one: the first feature as it was found: a setting and its value, an object.
          other: likewise.
        """
        return f"{one}, and {other}: {self.why}; {self.remedy}"


_ONE_OF_THEM = "leave one of them out"
_NO_JOIN = "leave join out, and give all ranks the same number of steps (tfdist.shard)"
_LOCAL = "local steps (`sync`)"
_HELD = "`accumulate_steps`"

LOCAL_AND_HELD = Exclusion(_LOCAL, _HELD, "each step of a block is applied", _ONE_OF_THEM)
LOCAL_AND_SCALED = Exclusion(
    _LOCAL, "`loss_scale`", "what overflows is left out by the ranks' averages, and a local step has none", _ONE_OF_THEM
)
LOCAL_AND_WIRE = Exclusion(
    _LOCAL,
    "`compression`, `sparse`",
    "that is how gradients travel, and blocks exchange variables, as they are",
    "leave the latter out, or have a warm-up, whose gradients travel (`block_warmup`)",
)
LOCAL_AND_EAGER = Exclusion(
    _LOCAL,
    "an optimizer that applies gradients eagerly",
    "a block is counted by the graph or function that trains",
    "put the training step into a tf.function, or use sync=gradients",
)
LOCAL_AND_OWN_BEGINNING = Exclusion(
    _LOCAL,
    "`tfdist.disable_broadcast`",
    "blocks filter the change of variables that all ranks began with",
    "build the training with broadcasts",
)
LOCAL_AND_JOIN = Exclusion(
    _LOCAL,
    "`tfdist.join`",
    "a rank without data cannot stand in for what it has trained in its block",
    _NO_JOIN,
)
PLAIN_AND_FILTER = Exclusion(
    "`sync=average`",
    "`block_momentum`, `block_learning_rate`, `block_nesterov`",
    "the average is momentum 0 and rate 1",
    "choose sync=bmuf, or leave the latter out",
)
HELD_AND_EAGER = Exclusion(
    _HELD,
    "an optimizer that applies gradients eagerly",
    "there they have travelled already",
    "put the training step into a tf.function (for model.fit: leave run_eagerly out), or leave accumulate_steps out",
)
HELD_AND_ASSIGNED = Exclusion(
    _HELD,
    "gradients that `assign` or a raw operation applies",
    "they are accumulated where an optimizer of TensorFlow or Keras applies them, in a graph or a tf.function",
    "compute and apply them there (not eagerly, by assign, or outside the function that computes them), or leave "
    "accumulate_steps out",
)
HELD_AND_KERAS = Exclusion(
    _HELD,
    "Keras's `gradient_accumulation_steps`",
    "tfdist exchanges once in so many steps, Keras in each",
    _ONE_OF_THEM,
)
HELD_AND_REDUCER = Exclusion(_HELD, "`extend.use_reducer`", "a reducer takes each step by itself", _ONE_OF_THEM)
HELD_AND_JOIN = Exclusion(
    _HELD,
    "`tfdist.join`",
    "a rank without data cannot stand in for what it holds",
    "leave join out, and have all ranks train the same number of steps, or leave accumulate_steps out",
)
EXCHANGE_AND_JOIN = Exclusion(
    "`extend.use_exchange`, `engine=collectives`, `engine=nccl`",
    "`tfdist.join`",
    "a rank without data does not run the operations that combine",
    _NO_JOIN,
)
SCALED_AND_KERAS = Exclusion(
    "`loss_scale`", "Keras's `LossScaleOptimizer`", "the optimizer scales the loss by itself", _ONE_OF_THEM
)
LARC_TWICE = Exclusion("`larc`", "`tfdist.larc`", "the optimizer has LARC already", _ONE_OF_THEM)
HOROVOD_AND_AUTOMATIC = Exclusion(
    "`tfdist.horovod`",
    "`accumulate_steps`, `sync`, `larc`, `loss_scale`, `divergence`",
    "they are about averages that are made without being asked for",
    "use Horovod's backward_passes_per_step, Keras's LossScaleOptimizer, or import tfdist alone",
)
HOROVOD_AND_STAGE = Exclusion(
    "`tfdist.horovod`",
    "`extend.add_stage`",
    "a script asks for each reduction by itself, and no update goes through stages",
    "import tfdist alone, or leave the stage out",
)

TABLE = (
    *(LOCAL_AND_HELD, LOCAL_AND_SCALED, LOCAL_AND_WIRE, LOCAL_AND_EAGER, LOCAL_AND_OWN_BEGINNING, LOCAL_AND_JOIN),
    *(PLAIN_AND_FILTER, HELD_AND_EAGER, HELD_AND_ASSIGNED, HELD_AND_KERAS, HELD_AND_REDUCER, HELD_AND_JOIN),
    *(EXCHANGE_AND_JOIN, SCALED_AND_KERAS, LARC_TWICE, HOROVOD_AND_AUTOMATIC, HOROVOD_AND_STAGE),
)


def rows() -> Iterator[str]:
    """The table as the documentation has it."""
    for row in TABLE:
        yield f"| {row.one} | {row.other} | {row.why} | {row.remedy} |"
