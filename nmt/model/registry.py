"""The model families by name: what --model_family chooses from.

A family is an `Architecture` (which variables there are) and a `Translator` (what is computed with them). To add one,
write the two in a folder beside `lstm/`, and one line here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nmt.model.architecture import Architecture
from nmt.model.interface import Translator
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.translator import LSTMTranslator


class Family(NamedTuple):
    """The two classes of a family."""

    architecture: type[Architecture]
    translator: type[Translator]


FAMILIES: dict[str, Family] = {
    "lstm": Family(LSTMArchitecture, LSTMTranslator),
}


def make_translator(architecture: Architecture, *arguments: Any, **options: Any) -> Translator:
    """The model of this architecture in the current default graph; further arguments as for `Translator`."""
    for family in FAMILIES.values():
        if type(architecture) is family.architecture:
            return family.translator(architecture, *arguments, **options)
    raise ValueError(f"{type(architecture).__name__} belongs to none of the model families {', '.join(FAMILIES)}")
