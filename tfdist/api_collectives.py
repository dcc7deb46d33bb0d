"""The collectives of a script: all_reduce, broadcast, all_gather …, for all ranks or a process group (new_group)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfdist.core.reduce_ops import Op
from tfdist.start import process

if TYPE_CHECKING:
    from tfdist.graph.tensor_collectives import TensorCollectives
    from tfdist.transport.interfaces import Group

_job = process().job
_world = _job.world


def _collectives_of(group: Group) -> TensorCollectives:
    from tfdist.graph.tensor_collectives import TensorCollectives  # imports TensorFlow: not before it is needed

    return TensorCollectives(_job, group)


@functools.cache
def _of_all_ranks() -> TensorCollectives:
    return _collectives_of(_world)


class Ranks:
    """Some of the ranks, for collectives among them; made by ``new_group``.

    Attributes:
      ranks: in the job.
      rank: this process's number in the group; None if it is not in it.
      size: of the group.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(_world.rank) if _world.rank in self.ranks else None
        self._group = _world.group(self.ranks) if self.rank is not None else None
        self._collectives = _collectives_of(self._group) if self._group else None
        self._closed = False

    def close(self) -> None:
        """Give back what the group has of MPI's few communicators; it cannot be used any more.

        One that is dropped is not lost: a later group of the same ranks uses it again, when all of them have dropped
        theirs.

        Collective: the group's ranks, which have left all other collectives of it; nothing for others.
        """
        if self._group is not None and not self._closed:
            self._closed = True
            self._group.close()


def broadcast(value: Any, root: int = 0, group: Ranks | None = None) -> Any:
    """One rank's value on every rank.

    Collective: all ranks of the group, in the same order.

    Args:
      value: a graph tensor (any dtype, strings too, the same static shape everywhere; the result is a tensor that needs
        every rank to run it), an eager tensor (the same shape everywhere), or any Python or NumPy value that can be
        pickled (sent at once; only the root's is looked at).
      root: whose; counted in the group.
      group: of ``new_group``; None for all ranks.
    """
    return _collectives(group).broadcast(value, root)


def all_reduce(tensor: Any, op: Op = "mean", group: Ranks | None = None) -> Any:
    """Combine element by element over the ranks. Of a mean and a sum there are derivatives.

    Collective: all ranks of the group, in the same order, with the same shape and dtype.

    Args:
      tensor: a graph tensor (the result is a tensor that needs every rank to run it), or an eager tensor, NumPy array
        or Python number (combined at once; NumPy results). float16 and bfloat16 are added in float32, rounded once.
      op: ``mean`` (floating-point and complex only), ``sum``, ``min``, ``max`` or ``product``; of bools: ``sum`` and
        ``max`` tell whether any is true, ``min`` and ``product`` whether all are.
      group: of ``new_group``; None for all ranks.

    Raises:
      ValueError: another ``op``, the mean of integers, the least or greatest of complex numbers, or strings.
      DisagreementError: the ranks bring different shapes or dtypes.
    """
    return _collectives(group).all_reduce(tensor, op)


def average_loss(total: Any, count: Any) -> Any:
    """A loss over what all ranks count together, such as tokens, of which a rank's batch has more or fewer.

    A rank's own ``total / count`` would weigh the tokens of a short batch more than those of a long one, and a sum
    would be averaged over the ranks. This one is ``size * total / (the sum of count over the ranks)``: its mean over
    the ranks, and that of its gradients, which tfdist takes, is what one process with all batches has, the sum of
    ``total`` over the sum of ``count``::

        loss = tfdist.average_loss(tf.reduce_sum(losses * mask), tf.reduce_sum(mask))

    Collective: all ranks (inside ``alone`` it is ``total / count``).

    Args:
      total: floating-point scalar tensor, in a graph or eager: the sum of this rank's losses.
      count: number or scalar tensor, integers too: by what one process divides; it is not differentiated, and may be 0
        on a rank that has nothing to add.

    Returns:
      Scalar tensor with the dtype of ``total``.
    """
    import tensorflow as tf  # not before it is needed

    total = tf.convert_to_tensor(total)
    count = tf.stop_gradient(tf.cast(count, tf.float64))
    if _job.switches.alone_depth:
        return total / tf.cast(count, total.dtype)
    everywhere = tf.convert_to_tensor(all_reduce(count, "sum"))
    return total * tf.cast(_world.size / everywhere, total.dtype)


def all_gather(tensor: Any, group: Ranks | None = None) -> Any:
    """Every rank's rows, one rank after the other; with derivatives: see the section of that name in tfdist/README.md.

    Collective: all ranks of the group, in the same order.

    Args:
      tensor: [rows, …], a graph or eager tensor or a NumPy array, of any dtype, strings too; the number of rows may
        differ between ranks.
      group: of ``new_group``; None for all ranks.

    Returns:
      [rows of all ranks, …].
    """
    return _collectives(group).all_gather(tensor)


def reduce_scatter(tensor: Any, op: Op = "sum", group: Ranks | None = None) -> Any:
    """Combine over the ranks; each gets its part of the rows.

    Collective: all ranks of the group, in the same order, with the same shape and dtype.

    Args:
      tensor: [rows, …], a graph or eager tensor or a NumPy array.
      op: as for ``all_reduce``.
      group: of ``new_group``; None for all ranks.

    Returns:
      [rows / size, …]: part ``rank`` of as many nearly equal ones, the first of which are longer.
    """
    return _collectives(group).reduce_scatter(tensor, op)


def all_to_all(tensor: Any, splits: Any = None, group: Ranks | None = None) -> tuple[Any, Any]:
    """Part i of every rank's rows to rank i.

    Collective: all ranks of the group, in the same order.

    Args:
      tensor: [rows, …], a graph or eager tensor or a NumPy array.
      splits: [size], the rows for each rank; None: nearly equal ones, the first of which are longer.
      group: of ``new_group``; None for all ranks.

    Returns:
      The received rows, one rank's after the other, and int64 [size]: how many came from each.

    Raises:
      ValueError: the splits do not add up to the rows.
    """
    return _collectives(group).all_to_all(tensor, splits)


def barrier(group: Ranks | None = None) -> None:
    """Wait until all ranks of the group are here. Collective: all ranks of the group."""
    _collectives(group).barrier()


def new_group(ranks: Sequence[int]) -> Ranks:
    """Some of the ranks, for the ``group`` argument of the collectives.

    Collective: those ranks, in the same order of groups; others may call it too and get a group they are not in.

    Raises:
      ValueError: numbers that are no ranks, or not ascending.
    """
    ranks = [int(r) for r in ranks]
    if not ranks or ranks != sorted(set(ranks)) or ranks[0] < 0 or ranks[-1] >= _world.size:
        raise ValueError(f"ranks={ranks}; a group is one or more of the ranks 0 to {_world.size - 1}, ascending")
    return Ranks(ranks)


def _collectives(group: Ranks | None) -> TensorCollectives:
    if group is None:
        return _of_all_ranks()
    if group._closed:
        raise RuntimeError(f"the group of ranks {', '.join(map(str, group.ranks))} was closed")
    if group._collectives is None:
        raise ValueError(f"rank {_world.rank} is not in the group of ranks {', '.join(map(str, group.ranks))}")
    return group._collectives
