"""Progress of a run, for the person who waits: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

from tqdm import tqdm


class Progress(Protocol):
    """Shows steps done, the newest figures and the time left; shares the screen with lines of text."""

    def advance(self, step: int, figures: dict[str, str]) -> None:
        """`step` steps are done; `figures` replaces what is shown beside them, unless it is empty."""

    def say(self, text: str) -> None:
        """Prints lines on standard output."""

    def close(self) -> None:
        """The run is over."""


class Bar:
    """A bar that is drawn anew in place, on standard error; lines go above it."""

    def __init__(self, first_step: int, last_step: int, stream: TextIO, unit: str = "step") -> None:
        self._bar = tqdm(
            initial=first_step,
            total=last_step,
            file=stream,
            unit=unit,
            dynamic_ncols=True,
            smoothing=0.05,
            mininterval=0.5,
        )

    def advance(self, step: int, figures: dict[str, str]) -> None:
        """Moves the bar; tqdm derives the time left from the pace of the newest steps."""
        if figures:
            self._bar.set_postfix(figures, refresh=False)
        self._bar.update(step - self._bar.n)

    def say(self, text: str) -> None:
        """Prints above the bar."""
        self._bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Leaves the full bar on the screen."""
        self._bar.close()


class Lines:
    """At most one line per twentieth of the run, on standard error: a log file stays readable."""

    def __init__(self, first_step: int, last_step: int, stream: TextIO, unit: str = "step") -> None:
        self._first, self._last, self._stream, self._unit = first_step, last_step, stream, unit
        self._shown = first_step
        self._started = time.monotonic()

    def advance(self, step: int, figures: dict[str, str]) -> None:
        """Prints, if new figures came and a twentieth of the run has passed since the last line."""
        if not figures or (step - self._shown) * 20 < self._last - self._first:
            return
        self._shown = step
        seconds_left = (time.monotonic() - self._started) / (step - self._first) * (self._last - step)
        shown = "".join(f", {name} {value}" for name, value in figures.items())
        print(
            f"{step}/{self._last} {self._unit}s{shown}, ETA {tqdm.format_interval(seconds_left)}",
            file=self._stream,
            flush=True,
        )

    def say(self, text: str) -> None:
        """Prints."""
        print(text, flush=True)

    def close(self) -> None:
        """Nothing is open."""


def progress(first_step: int, last_step: int, stream: TextIO | None = None, unit: str = "step") -> Progress:
    """A bar if the stream (default: standard error) is a terminal, else lines; `unit` is what is counted."""
    stream = sys.stderr if stream is None else stream
    return (Bar if stream.isatty() else Lines)(first_step, last_step, stream, unit)
