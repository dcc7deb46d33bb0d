"""Word: what a rank says with an exchange that it makes anyway, as one number."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

_FLAGS = 6
_SET_COUNTS = 8
_NOTE_AT = _FLAGS + 3  # bits: the flags, and a count below ``_SET_COUNTS``


class Word(NamedTuple):
    """What one rank says.

    Attributes:
      overwritten: the rank's variables were overwritten: those of the first rank count.
      absent: the rank has no more data, and its tensors do not count.
      stops: the rank wants to end training.
      evaluates: the rank evaluates the collective without updating variables.
      ends_epoch: the rank wants to end an epoch of ``fit``.
      asks: the rank wants all ranks to send a note.
      times_set: how often the script has set trained variables since the last step, to a multiple of 8.
      note: number from 1 to 2^54 - 1; 0: none.
    """

    overwritten: bool = False
    absent: bool = False
    stops: bool = False
    evaluates: bool = False
    ends_epoch: bool = False
    asks: bool = False
    times_set: int = 0
    note: int = 0

    def packed(self) -> int:
        """Return the word as a number from 0 on."""
        flags = sum(flag << bit for bit, flag in enumerate(self[:_FLAGS]))
        return flags | self.times_set % _SET_COUNTS << _FLAGS | self.note << _NOTE_AT

    @classmethod
    def unpacked(cls, number: int) -> Word:
        """Return the word of a number."""
        overwritten, absent, stops, evaluates, ends_epoch, asks = (bool(number >> bit & 1) for bit in range(_FLAGS))
        times_set, note = number >> _FLAGS & _SET_COUNTS - 1, number >> _NOTE_AT
        return cls(overwritten, absent, stops, evaluates, ends_epoch, asks, times_set, note)


@dataclasses.dataclass(slots=True)
class Says:
    """What this rank is to say with the next step; see ``Word``.

    Attributes:
      overwritten: True if this rank's values may differ from the other ranks'.
      absent: True if this rank has no data any more.
      evaluates: True if the next run evaluates the collective without updating variables.
      asks: True if this rank wants all ranks to send a note in the step after the next.
      times_set: how often the script has set trained variables since the last step.
      note: number from 1 to 2^54 - 1; 0: none.
    """

    overwritten: bool = False
    absent: bool = False
    evaluates: bool = False
    asks: bool = False
    times_set: int = 0
    note: int = 0

    def word(self, stops: bool, ends_epoch: bool, note: bool) -> Word:
        """Return the word, with or without the note."""
        said = self.overwritten, self.absent, stops, self.evaluates, ends_epoch, self.asks, self.times_set
        return Word(*said, self.note if note else 0)

    def said(self) -> None:
        """Forget what is said with one step only."""
        self.overwritten, self.asks, self.times_set, self.note = False, False, 0, 0


@dataclasses.dataclass(slots=True)
class Heard:
    """What all ranks have said with the last step.

    Attributes:
      root_only: True if some rank's values may differ: the result is the first present rank's contribution alone.
      set_apart: True if ``times_set`` or ``overwritten`` differs between the ranks. The former has the effect of the
        latter.
      asked: True if some rank has asked for notes, until they are read.
      notes: notes of all present ranks, if all sent one, until they are read.
    """

    root_only: bool = False
    set_apart: bool = False
    asked: bool = False
    notes: list[int] = dataclasses.field(default_factory=list)
