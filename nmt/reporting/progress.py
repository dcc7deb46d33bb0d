"""Progress of a run: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

from tqdm import tqdm


class Progress(Protocol):
    """Shows the steps done, the newest figures and the remaining time; also prints lines of text."""

    def advance(self, step: int, figures: dict[str, str]) -> None:
        """Show that `step` steps are done; `figures` replaces the figures shown, unless it is empty."""

    def say(self, text: str) -> None:
        """Print lines on standard output."""

    def close(self) -> None:
        """End the display."""


class Bar:
    """A progress bar on `stream`; lines of text are printed above the bar."""

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
        """Move the bar; tqdm estimates the remaining time from the speed of the newest steps."""
        if figures:
            self._bar.set_postfix(figures, refresh=False)
        self._bar.update(step - self._bar.n)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        self._bar.close()


class Lines:
    """Progress as lines on `stream`, at most one per twentieth of the run, so that a log file stays readable."""

    def __init__(self, first_step: int, last_step: int, stream: TextIO, unit: str = "step") -> None:
        self._first, self._last, self._stream, self._unit = first_step, last_step, stream, unit
        self._shown = first_step
        self._started = time.monotonic()

    def advance(self, step: int, figures: dict[str, str]) -> None:
        """Print a line, if there are new figures and a twentieth of the run has passed since the last line."""
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
        """Print lines."""
        print(text, flush=True)

    def close(self) -> None:
        """Do nothing."""


def progress(first_step: int, last_step: int, stream: TextIO | None = None, unit: str = "step") -> Progress:
    """Return a bar if the stream (default: standard error) is a terminal, else lines; `unit` names what is counted."""
    stream = sys.stderr if stream is None else stream
    return (Bar if stream.isatty() else Lines)(first_step, last_step, stream, unit)
