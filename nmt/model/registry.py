"""The model families by name: what --model_family chooses from.

A family is an `Architecture` (which variables there are) and a `Translator` (what is computed with them). To add one,
write the two in a folder beside these, and one line here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nmt.model.architecture import Architecture
from nmt.model.convs2s.architecture import ConvS2SArchitecture
from nmt.model.convs2s.translator import ConvS2STranslator
from nmt.model.interface import Translator
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.transformer.architecture import TransformerArchitecture
from nmt.model.transformer.translator import TransformerTranslator


class Family(NamedTuple):
    """The two classes of a family.

    Attributes:
        architecture: which variables there are.
        translator: what is computed with them.
        draws: whether the options say how weights start; else the family's paper does.
    """

    architecture: type[Architecture]
    translator: type[Translator]
    draws: bool = True


FAMILIES: dict[str, Family] = {
    "lstm": Family(LSTMArchitecture, LSTMTranslator),
    "convs2s": Family(ConvS2SArchitecture, ConvS2STranslator, draws=False),
    "transformer": Family(TransformerArchitecture, TransformerTranslator, draws=False),
}


def make_translator(architecture: Architecture, *arguments: Any, **options: Any) -> Translator:
    """The model of this architecture in the current default graph; further arguments as for `Translator`."""
    for family in FAMILIES.values():
        if type(architecture) is family.architecture:
            return family.translator(architecture, *arguments, **options)
    raise ValueError(f"{type(architecture).__name__} belongs to none of the model families {', '.join(FAMILIES)}")
