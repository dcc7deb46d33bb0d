"""Registry of the model families that --model_family selects, by name.

A family has an `Architecture` (its sizes, which determine the variables) and a `Translator` (the computation). To add a
family, write these two classes in a new folder of `nmt/model` and add one line here.
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
    """The classes of one model family.

    Attributes:
        architecture: class of the family's sizes, which determine the variables.
        translator: class that builds the computation.
        draws: True if --init_op and --init_weight initialize the weights; False if the family uses its paper's values.
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
    """Build the model of this architecture in the current default graph; other arguments as for `Translator`."""
    for family in FAMILIES.values():
        if type(architecture) is family.architecture:
            return family.translator(architecture, *arguments, **options)
    raise ValueError(f"{type(architecture).__name__} belongs to none of the model families {', '.join(FAMILIES)}")
