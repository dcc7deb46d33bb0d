"""Collectives for scripts: all_reduce, broadcast, all_gather …, for all ranks or a process group (new_group)."""

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
    from tfdist.graph.tensor_collectives import TensorCollectives  # here, because it imports TensorFlow

    return TensorCollectives(_job, group)


@functools.cache
def _of_all_ranks() -> TensorCollectives:
    return _collectives_of(_world)


class Ranks:
    """Process group: some of the ranks, for collectives among them; made by ``new_group``.

    Attributes:
      ranks: ranks of the job that are in the group.
      rank: rank of this process in the group; None if this process is not in the group.
      size: number of ranks in the group.

    Example:
      >>> group = tfdist.new_group(range(tfdist.size()))
      >>> group.rank == tfdist.rank()
      True
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(_world.rank) if _world.rank in self.ranks else None
        self._group = _world.group(self.ranks) if self.rank is not None else None
        self._collectives = _collectives_of(self._group) if self._group else None

    def close(self) -> None:
        """Release the MPI communicator of the group, which cannot be used any more. MPI has few communicators.

        A communicator that is not released is not lost. A later group of the same ranks uses it again, when all of
        these ranks have deleted their old group.

        Collective: the ranks of the group, after all other collectives of the group. Does nothing on other ranks.
        """
        if self._group is not None and self._collectives is not None:
            self._collectives = None
            self._group.close()


def broadcast(value: Any, root: int = 0, group: Ranks | None = None) -> Any:
    """Return one rank's value on every rank.

    Collective: all ranks of the group, in the same order.

    Args:
      value: graph tensor, eager tensor, or any Python or NumPy value that can be pickled. Tensors have any dtype, also
        strings, and the same (static) shape on all ranks. Eager tensors and values are sent immediately. For a graph
        tensor the result is a tensor that all ranks must run together. Python and NumPy values of ranks other than
        the root are ignored.
      root: rank in the group that sends its value.
      group: from ``new_group``; None for all ranks.

    Example:
      >>> tfdist.broadcast({"seed": 7 + tfdist.rank()})
      {'seed': 7}
    """
    return _collectives(group).broadcast(value, root)


def all_reduce(tensor: Any, op: Op = "mean", group: Ranks | None = None) -> Any:
    """Combine a tensor over the ranks, element by element, and return the result. ``mean`` and ``sum`` have gradients.

    Collective: all ranks of the group, in the same order, with the same shape and dtype.

    Args:
      tensor: a graph tensor, an eager tensor, a NumPy array or a Python number. For a graph tensor the result is a
        tensor that all ranks must run together. The other kinds are combined immediately, to an eager tensor or a
        NumPy array. float16 and bfloat16 are added in float32, rounded once.
      op: ``mean`` (floating-point and complex only), ``sum``, ``min``, ``max`` or ``product``. For bools, ``sum`` and
        ``max`` return whether any is true, ``min`` and ``product`` whether all are true.
      group: from ``new_group``; None for all ranks.

    Raises:
      ValueError: an unknown ``op``, the mean of integers, the minimum or maximum of complex numbers, or strings.
      DisagreementError: the ranks have different shapes or dtypes.

    Example:
      >>> mean = tfdist.all_reduce(tf.constant(3.0))
      >>> float(mean)
      3.0
    """
    return _collectives(group).all_reduce(tensor, op)


def average_loss(total: Any, count: Any) -> Any:
    """Return a loss that is normalised by the number of tokens (or other items) of all ranks together.

    With a rank's own ``total / count``, tokens of a short batch would count more than tokens of a long one. This loss
    is ``size * total / (the sum of count over the ranks)``. tfdist averages its gradients over the ranks. The result
    equals that of one process with all batches: the sum of ``total`` over the sum of ``count``.

    Collective: all ranks (inside ``alone`` it is ``total / count``).

    Args:
      total: floating-point scalar tensor, in a graph or eager: the sum of this rank's losses.
      count: number or scalar tensor, also integers: the number of this rank's tokens. It is not differentiated, and
        may be 0 on a rank without tokens.

    Returns:
      Scalar tensor with the dtype of ``total``.

    Example:
      >>> losses, mask = tf.constant([1.0, 3.0, 9.0]), tf.constant([1.0, 1.0, 0.0])
      >>> loss = tfdist.average_loss(tf.reduce_sum(losses * mask), tf.reduce_sum(mask))
      >>> float(loss)
      2.0
    """
    import tensorflow as tf  # here, so that importing tfdist does not import TensorFlow

    total = tf.convert_to_tensor(total)
    count = tf.stop_gradient(tf.cast(count, tf.float64))
    if _job.switches.alone_depth:
        return total / tf.cast(count, total.dtype)
    everywhere = tf.convert_to_tensor(all_reduce(count, "sum"))
    return total * tf.cast(_world.size / everywhere, total.dtype)


def all_gather(tensor: Any, group: Ranks | None = None) -> Any:
    """Concatenate the rows of all ranks, by rank. Its gradients: tfdist/docs/semantics.md, "Losses".

    Collective: all ranks of the group, in the same order.

    Args:
      tensor: [rows, …], a graph or eager tensor or a NumPy array, of any dtype, also strings. The number of rows may
        differ between ranks.
      group: from ``new_group``; None for all ranks.

    Returns:
      [rows of all ranks, …].

    Example:
      >>> rows = tfdist.all_gather(tf.constant([[1.0, 2.0]]))
      >>> len(rows) == tfdist.size()
      True
    """
    return _collectives(group).all_gather(tensor)


def reduce_scatter(tensor: Any, op: Op = "sum", group: Ranks | None = None) -> Any:
    """Combine a tensor over the ranks and return this rank's part of the rows of the result.

    Collective: all ranks of the group, in the same order, with the same shape and dtype.

    Args:
      tensor: [rows, …], a graph or eager tensor or a NumPy array.
      op: as for ``all_reduce``.
      group: from ``new_group``; None for all ranks.

    Returns:
      [rows / size, …]: part ``rank`` of ``size`` parts. If the rows cannot be split equally, the first parts have one
      row more.

    Example:
      >>> part = tfdist.reduce_scatter(tf.ones([4, 2]))
      >>> len(part) == 4 // tfdist.size()
      True
    """
    return _collectives(group).reduce_scatter(tensor, op)


def all_to_all(tensor: Any, splits: Any = None, group: Ranks | None = None) -> tuple[Any, Any]:
    """Send part i of this rank's rows to rank i, and return the rows that this rank receives.

    Collective: all ranks of the group, in the same order.

    Args:
      tensor: [rows, …], a graph or eager tensor or a NumPy array.
      splits: [size], the number of rows for each rank; None: as equal as possible, with one row more in the first
        parts.
      group: from ``new_group``; None for all ranks.

    Returns:
      The received rows, in the order of the ranks, and int64 [size]: the number of rows from each rank.

    Raises:
      ValueError: the sum of the splits is not the number of rows.

    Example:
      >>> rows, counts = tfdist.all_to_all(tf.range(4))
      >>> int(sum(counts))
      4
    """
    return _collectives(group).all_to_all(tensor, splits)


def barrier(group: Ranks | None = None) -> None:
    """Wait until all ranks of the group have arrived. Collective: all ranks of the group.

    Example:
      >>> tfdist.barrier()
    """
    _collectives(group).barrier()


def new_group(ranks: Sequence[int]) -> Ranks:
    """Return a process group of some ranks, for the ``group`` argument of the collectives.

    Collective: the ranks of the group, in the same order of groups. Other ranks may call it too; they get a group in
    which they are not.

    Raises:
      ValueError: the numbers are not ranks, or are not ascending.

    Example:
      >>> group = tfdist.new_group(range(tfdist.size()))
      >>> float(tfdist.all_reduce(tf.constant(1.0), group=group))
      1.0
    """
    ranks = [int(r) for r in ranks]
    if not ranks or ranks != sorted(set(ranks)) or ranks[0] < 0 or ranks[-1] >= _world.size:
        raise ValueError(f"ranks={ranks}; a group is one or more of the ranks 0 to {_world.size - 1}, ascending")
    return Ranks(ranks)


def _collectives(group: Ranks | None) -> TensorCollectives:
    if group is None:
        return _of_all_ranks()
    if group.rank is None:
        raise ValueError(f"rank {_world.rank} is not in the group of ranks {', '.join(map(str, group.ranks))}")
    if group._collectives is None:
        raise RuntimeError(f"the group of ranks {', '.join(map(str, group.ranks))} was closed")
    return group._collectives
