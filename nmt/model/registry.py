"""Registry of the model families that --model_family selects, by name.

A family has an `Architecture` (its sizes, which determine the variables) and a `Translator` (the computation). To add a
family, write these two classes in a new folder of `nmt/model`. Add a line here, and its name in
`nmt/options/model_options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from nmt.core.errors import InputError
from nmt.model.architecture import Architecture
from nmt.model.convs2s.architecture import ConvS2SArchitecture
from nmt.model.convs2s.translator import ConvS2STranslator
from nmt.model.interface import Translator
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.transformer.architecture import TransformerArchitecture
from nmt.model.transformer.translator import TransformerTranslator
from nmt.options.config import Config
from nmt.text.vocabulary import SourceVocabulary, Vocabulary


class Family(NamedTuple):
    """The classes of one model family.

    Attributes:
        architecture: class of the family's sizes, which determine the variables.
        translator: class that builds the computation.
    """

    architecture: type[Architecture]
    translator: type[Translator]


FAMILIES: dict[str, Family] = {
    "lstm": Family(LSTMArchitecture, LSTMTranslator),
    "convs2s": Family(ConvS2SArchitecture, ConvS2STranslator),
    "transformer": Family(TransformerArchitecture, TransformerTranslator),
}


def make_translator(architecture: Architecture, *arguments: Any, **options: Any) -> Translator:
    """Build the model of this architecture in the current default graph; other arguments as for `Translator`."""
    for family in FAMILIES.values():
        if type(architecture) is family.architecture:
            return family.translator(architecture, *arguments, **options)
    raise ValueError(f"{type(architecture).__name__} belongs to none of the model families {', '.join(FAMILIES)}")


def architecture(
    config: Config, vocabularies: tuple[SourceVocabulary, Vocabulary], record: Mapping[str, Any]
) -> Architecture:
    """Return the architecture that options ask for: a field with the name of an option has its value.

    Args:
        config: all options.
        vocabularies: source and target vocabulary.
        record: mapping with the widths of pretrained vectors, if any (`src_embedding_size`, `tgt_embedding_size`).

    Raises:
        InputError: options contradict each other, or the sizes of the vocabularies or vectors.
    """
    src_vocab, tgt_vocab = vocabularies
    src_size, tgt_size = record.get("src_embedding_size"), record.get("tgt_embedding_size")
    encoder_residual, decoder_residual = config.residual_layers
    if config.num_sampled_softmax > tgt_vocab.size:
        raise InputError(
            f"--num_sampled_softmax={config.num_sampled_softmax} is more than the {tgt_vocab.size} words of "
            f"{tgt_vocab.path}: give a smaller number, or 0 for all words"
        )
    derived: dict[str, Any] = dict(
        src_vocab_size=src_vocab.size,
        tgt_vocab_size=tgt_vocab.size,
        src_embedding_size=src_size or config.embedding_size,
        tgt_embedding_size=tgt_size or config.embedding_size,
        src_pretrained=src_size is not None,
        tgt_pretrained=tgt_size is not None,
        share_embedding=config.share_vocab,
        character_source=config.use_char_encode,
        num_encoder_residual_layers=encoder_residual,
        num_decoder_residual_layers=decoder_residual,
    )
    kind = FAMILIES[config.model_family].architecture
    try:
        return kind(**{f.name: derived[f.name] if f.name in derived else getattr(config, f.name) for f in fields(kind)})
    except ValueError as error:
        raise InputError(str(error)) from None
