"""``python -m tfdist trace``: what the ranks of a job did last, from the files of their flight recorders."""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

from tfdist.record import chrome
from tfdist.record.ranks import Operation, Rank, load, operations
from tfdist.record.recorded import Event, shown
from tfdist.record.steps import table

_LISTED = 8  # ranks described in full, at most
_NAMED = 100  # numbers of ranks in a line, at most
_LINES = 12  # of a thread's stack, at most


def report(ranks: Sequence[Rank]) -> str:
    """Return the report about the ranks.

    Args:
      ranks: the ranks, with times on one clock.
    """
    done = operations(ranks)
    return "\n".join([*_heading(ranks, done), "", *_difference(ranks, done), "", *_slowest(ranks, done)])


def _heading(ranks: Sequence[Rank], done: Sequence[Operation]) -> Iterator[str]:
    head = ranks[0].recorded.head
    there = {rank.number for rank in ranks}
    missing = [number for number in range(head["size"]) if number not in there]
    hosts = len({rank.recorded.head["host"] for rank in ranks})
    yield f"{head['program']}: {head['size']} ranks" + (f", files of {hosts} machines" if hosts > 1 else "")
    if missing:
        yield f"no files of {_numbers(missing)}: they are on their machines"
    if done:
        yield f"{len(done)} operations, from {_clock(ranks[0], done[0].start)} to {_clock(ranks[0], done[-1].start)}"


def _difference(ranks: Sequence[Rank], done: Sequence[Operation]) -> Iterator[str]:
    first = next((operation for operation in done if operation.differs), None)
    if first is None:
        yield "no difference: all ranks have done the same in the same order"
        return
    event = next(iter(first.by_rank.values()))
    yield f"first difference: {event.what} ({first.line}, operation {first.number})"
    said: dict[tuple[str, int], list[int]] = {}
    for number, brought in first.by_rank.items():
        said.setdefault((brought.what, brought.size_bytes), []).append(number)
    for (what, size_bytes), numbers in said.items():
        when = _clock(ranks[0], min(first.by_rank[n].start for n in numbers))
        other = f" to {what}" if len(said) > 1 else ""
        brings = f" with {size_bytes:,} bytes{other}" if size_bytes else other
        yield f"  {_numbers(numbers)} came{brings} at {when}"
    if first.absent:
        yield f"  {_numbers(first.absent)} did not come"
    for rank in [rank for rank in ranks if rank.number in first.absent][:_LISTED]:
        yield ""
        yield from _whereabouts(rank)


def _whereabouts(rank: Rank) -> Iterator[str]:
    done = rank.operations
    if done:
        yield f"rank {rank.number}'s last operation: {_told(rank, done[-1])}"
    recorded = rank.recorded
    if recorded.looked:
        yield f"rank {rank.number} at {_time_of_day(recorded.looked)}, the innermost line first:"
        below = 0
        for line in recorded.stacks.splitlines():
            below = below + 1 if line.startswith(" ") else 0
            if below <= _LINES:
                yield f"  {line}"


def _told(rank: Rank, event: Event) -> str:
    when = f"came at {_clock(rank, event.start)}"
    if not event.met:
        return f"{event.what}: {when}, and waits for others"
    return f"{event.what}: {when}, all ranks there at {_clock(rank, event.met)}"


def _slowest(ranks: Sequence[Rank], done: Sequence[Operation]) -> Iterator[str]:
    common = [operation for operation in done if len(operation.by_rank) > 1 and not operation.absent]
    if not common:
        return
    last = {rank.number: 0 for rank in ranks}
    behind: dict[int, list[float]] = {rank.number: [] for rank in ranks}
    waited: dict[int, list[float]] = {rank.number: [] for rank in ranks}
    for operation in common:
        last[max(operation.by_rank, key=lambda number: operation.by_rank[number].start)] += 1
        for number, event in operation.by_rank.items():
            behind[number].append(event.start - operation.start)
            if event.met:
                waited[number].append(event.met - event.start)
    slowest = max(last, key=last.__getitem__)
    yield f"slowest: rank {slowest} came last to {last[slowest]} of {len(common)} operations"
    yield f"{'rank':>4} {'operations':>11} {'came last':>10} {'behind the first':>17} {'waited':>12}  (ms, median)"
    for rank in ranks:
        number = rank.number
        yield (
            f"{number:>4} {len(behind[number]):>11} {last[number]:>10} "
            f"{_median_ms(behind[number]):>17} {_median_ms(waited[number]):>12}"
        )


def _median_ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3f}" if seconds else "-"


def _numbers(numbers: Sequence[int]) -> str:
    shown, more = sorted(numbers)[:_NAMED], f" and {len(numbers) - _NAMED} more" * (len(numbers) > _NAMED)
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, shown)) + more


def _clock(rank: Rank, seconds: float) -> str:
    return _time_of_day(rank.recorded.head["clock"] + seconds)


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f"{seconds % 1:.3f}"[1:]


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
      arguments: arguments after ``trace``.

    Returns:
      The exit code: 0, or 2 if the files cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tfdist trace",
        description="Compare what the ranks of one job did last: where they first differ, where missing ranks were, "
        "and which rank was the slowest.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="file of the flight recorder, or folder of such files")
    parser.add_argument("--chrome", metavar="FILE", help="write a trace for Perfetto and Chrome's about:tracing")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack the characters of a damaged file
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        ranks = load(options.files)
        sys.stdout.write(report(ranks) + "\n")
        if any(rank.spans for rank in ranks):
            sys.stdout.write("\n" + table([rank.spans for rank in ranks]) + "\n")
        if options.chrome:
            chrome.write(options.chrome, ranks)
            sys.stdout.write(f"\nthe trace is in {options.chrome}\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(shown(f"python -m tfdist trace: {error}\n"))
        return 2
    return 0
