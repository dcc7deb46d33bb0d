"""Comparison of variables when the ranks' fingerprints differ: rounding is repaired, a larger difference ends the job.

Ranks on different processors, or with other numbers of threads, round a norm or a square root differently, though
nothing is wrong. In one step this moves a variable by at most a few units in the last place of its largest entry.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.replicas.program import READ, STATISTIC, TRAINED, Program
from tfdist.transport import agreement
from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import Channel

PLACE = "the comparison of what the ranks hold"
_UNITS_A_STEP = 8.0  # units in the last place
_MANY = 1 << 30  # steps, if their number is not known
_MOST = 1e-4  # of a variable's largest entry, after any number of steps
_NARROW_UNITS = 4.0  # for float16 and bfloat16, which round every step's update
REASONS = (
    "Look for a difference between the ranks. It may be in the optimizer, its rate or its clipping, or in a scale or "
    "noise between gradients and their application. It may be in gradients that no tape has made: average them by "
    "tfdist.all_reduce(gradient, 'mean'). It may be a condition on a rank's own loss, weights that one rank sets or "
    "restores, or threads that train. If variables are meant to differ, declare them by tfdist.keep_own(variables)"
)
_READ_REASONS = (
    "The loss reads it. If it is set from each rank's own batch, average the new value: "
    "variable.assign(tfdist.all_reduce(value, 'mean')). Or average it by tfdist.average_variables before it is read. "
    "If it is meant to differ, like a statistic or a state of the samples, declare it by tfdist.keep_own(variables)"
)
SET_BY_SCRIPT = (
    "{} and {} more of the variables were set between two steps, to other values on each rank (by {:.1g} of the "
    "largest entry). Rank 0's values are taken, now and each time this happens. To avoid this, set the variables to "
    "tfdist.broadcast(values)"
)
_OF_BATCHES = (
    "{}, which the loss reads, is a moving statistic that differs between ranks. It is treated as each rank's own. If "
    "the training reads it (a frozen layer, renorm), average it before: tfdist.average_variables(model). Else confirm "
    "this by tfdist.keep_own(variable)"
)
_OTHERS = "the ranks train with other variables, first with number {}", REASONS
ROUNDING = (
    "{} and {} more of the variables differ between ranks by rounding (by {:.1g} of the largest entry). Different "
    "processors or numbers of threads cause this. Rank 0's values are taken, now and each time this happens"
)


class Distance(NamedTuple):
    """Distance of a rank's variable from rank 0's variable.

    Attributes:
      relative: largest difference, as a fraction of the largest entry.
      allowed: largest difference that rounding explains, as a fraction of the largest entry.
      at: index of the largest difference; empty for a scalar.
      own: this rank's value at that index.
      first: rank 0's value at that index.
    """

    relative: float
    allowed: float
    at: tuple[int, ...]
    own: float
    first: float


def distance(own: np.ndarray, first: np.ndarray, steps: int) -> Distance:
    """Return the distance of two values of one variable, after ``steps`` steps with perhaps different rounding."""
    real = _is_real(own.dtype)
    a, b = (np.atleast_1d(x).astype(np.float64) if real else np.atleast_1d(x) for x in (own, first))
    if a.dtype.kind not in "fiu":
        differs = (a != b).astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):
            differs = np.abs(a.astype(np.float64) - b.astype(np.float64))
        same = (a == b) | ((a != a) & (b != b))
        differs = np.where(same, 0.0, np.where(np.isfinite(differs), differs, np.inf))
    where = np.unravel_index(int(np.argmax(differs)), differs.shape)
    finite = [np.abs(x[np.isfinite(x)]) for x in (a, b)] if a.dtype.kind == "f" else []
    largest = max([float(x.max()) for x in finite if x.size], default=0.0)
    index = tuple(map(int, where)) if own.shape else ()
    shown = [x[where] if x.dtype.kind in "fiub" else np.nan for x in (a, b)]
    allowed = _allowed(own.dtype, steps)
    return Distance(float(differs[where]) / (largest or 1.0), allowed, index, float(shown[0]), float(shown[1]))


def _is_real(dtype: np.dtype) -> bool:
    return dtype.kind in "fV" or dtype.name == "bfloat16"


def _allowed(dtype: np.dtype, steps: int) -> float:
    """Return the largest difference that rounding explains after these steps, as a fraction of the largest entry."""
    if not _is_real(dtype):
        return 0.0
    units = float(np.finfo(dtype).eps) if dtype.kind == "f" else 2.0**-7
    return _NARROW_UNITS * units if dtype.itemsize < 4 else min(_MOST, _UNITS_A_STEP * units * steps)


def settle(
    control: Channel, program: Program, told: set[str], since: int | None, step: int, take: str = ROUNDING
) -> None:
    """Settle a difference between the ranks' fingerprints: take rank 0's values, or raise.

    Collective: all ranks.

    Args:
      control: channel of all ranks.
      program: the variables of this rank.
      told: names of variables for which a log line was printed.
      since: number of the last step after which the ranks held the same values; None: not known.
      step: number of the step after which their values differ; 0: not known.
      take: ``ROUNDING``: rank 0's values are taken if the ranks differ by rounding only; ``SET_BY_SCRIPT``: always.

    Raises:
      DisagreementError: the ranks hold other variables, or values that differ by more than rounding.
    """
    replicas = program.replicas()
    agreement.agree(control, [one.line for one in replicas], PLACE, _OTHERS)
    own = [checksum([value]) for value in program.read([one.variable for one in replicas])]
    first: list[int] = control.broadcast_object(own, PLACE)
    mine = [n for n, (a, b) in enumerate(zip(own, first, strict=True)) if a != b]
    ranks: list[list[int]] = control.all_gather_object(mine, PLACE)
    different: set[int] = set().union(*ranks)
    wanted = sorted(different, key=lambda n: (_consequence(replicas[n].kind, replicas[n].variable.shape.rank), n))
    statistics = [replicas[number] for number in wanted if replicas[number].kind == STATISTIC]
    if statistics:
        more = f" (and {len(statistics) - 1} more)" if statistics[1:] else ""
        announce(_OF_BATCHES.format(f"{statistics[0].name}{more}"))
    for one in statistics:
        program.keep_own(one.variable)
    wanted = [number for number in wanted if replicas[number].kind != STATISTIC]
    worst = 0.0
    for number in wanted:
        (value,) = program.read([replicas[number].variable])
        zero = np.array(value, order="C")
        control.arrive(PLACE)
        control.broadcast(zero.reshape(-1).view(np.uint8))
        found = distance(value, zero, step - since if since is not None else _MANY)
        distances: list[Distance] = control.all_gather_object(found, PLACE)
        far = max(range(len(distances)), key=lambda rank: distances[rank].relative - distances[rank].allowed)
        if take != SET_BY_SCRIPT and distances[far].relative > distances[far].allowed:
            raise DisagreementError(
                _told(replicas[number].name, replicas[number].kind, far, distances[far], len(wanted), since, step)
            )
        worst = max(worst, *(one.relative for one in distances))
        program.load([(replicas[number].variable, zero)])
    if wanted and replicas[wanted[0]].name not in told:
        told.add(replicas[wanted[0]].name)
        announce(take.format(replicas[wanted[0]].name, len(wanted) - 1, worst))


def _consequence(kind: str, rank: int) -> int:
    """Return a sort key with causes first: untrained variables that the loss reads, an optimizer's scalars, others."""
    return 0 if kind == READ else 2 if kind == TRAINED or rank else 1


def _told(name: str, kind: str, rank: int, far: Distance, count: int, since: int | None, step: int) -> str:
    what = {TRAINED: "which is trained", READ: "which the loss reads"}.get(kind, f"a variable {kind}")
    place = f" at {list(far.at)}" if far.at else ""
    more = f" (the first of {count} variables that differ)" if count > 1 else ""
    after = f", after step {step}" if step else ""
    before = f"; after step {since} they held the same" if since else ""
    return (
        f"the ranks are apart: {name}, {what}, is {far.first:.9g} on rank 0, and {far.own:.9g} on rank {rank}"
        f"{place}{more}{after}{before}. {_READ_REASONS if kind == READ else REASONS}"
    )
