"""Options of the data: texts, vocabularies, how lines become batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nmt.model.architecture import Architecture
from nmt.options.option import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, Condition, option
from nmt.text.tokens import SUBWORD_OPTIONS
from nmt.train.feed import FeedSettings
from nmt.translate.translation_model import SearchSettings

_DRAWN = Condition(
    "--src_bpe_dropout or --tgt_bpe_dropout", lambda options: options.src_bpe_dropout or options.tgt_bpe_dropout
)
_CODES = Condition(
    "--subword_option=bpe and --bpe_codes", lambda options: options.subword_option == "bpe" and options.bpe_codes
)
_SOURCE_CODES = Condition(
    f"{_CODES.text}, and no --language_model", lambda options: _CODES.holds(options) and not options.language_model
)
BY_SENTENCES = Condition("no --batch_tokens, or --batch_tokens=0", lambda options: not options.batch_tokens)


@dataclass(frozen=True)
class DataOptions:
    """Which text, and how much of it."""

    title: ClassVar[str] = "data"

    src: str | None = option(None, "suffix of the source files, such as en", fixed=True)
    tgt: str | None = option(None, "suffix of the target files, such as de", fixed=True)
    train_prefix: str | None = option(None, "training text is <train_prefix>.<src> and <train_prefix>.<tgt>")
    dev_prefix: str | None = option(None, "development text, likewise")
    test_prefix: str | None = option(None, "test text, likewise; may be left out")
    vocab_prefix: str | None = option(None, "vocabularies are <vocab_prefix>.<src> and <vocab_prefix>.<tgt>")
    out_dir: str | None = option(None, "directory of checkpoints, logs and outputs", saved=False)
    sos: str = option("<s>", "the token before a sentence", fixed=True)
    eos: str = option("</s>", "the token after a sentence", fixed=True)
    share_vocab: bool = option(
        False,
        "the source's vocabulary and embedding serve both sides",
        makes=[(Architecture, "share_embedding")],
        fixed=True,
    )
    check_special_token: bool = option(
        True, "put <unk>, sos and eos before a vocabulary that does not begin with them", fixed=True
    )
    max_unknown_share: float = option(
        0.3, "part of a training or development text's tokens that its vocabulary may lack; 1: any", within=SHARE
    )
    use_char_encode: bool = option(
        False,
        "read source words as characters, not by a vocabulary",
        makes=[(Architecture, "character_source")],
        fixed=True,
    )
    embed_prefix: str | None = option(None, "pretrained embeddings are <embed_prefix>.<src> and <embed_prefix>.<tgt>")
    subword_option: str = option(
        "", "how tokens are joined into words", allowed=SUBWORD_OPTIONS, makes=[SearchSettings]
    )
    bpe_codes: str | None = option(None, "the bpe.codes of nmt.prepare that the training text is cut by", needs=_DRAWN)
    src_bpe_dropout: float = option(
        0.0,
        "probability that a joint of a source word's subwords is left out when it is read",
        within=BELOW_ONE,
        needs=_SOURCE_CODES,
        makes=[FeedSettings],
    )
    tgt_bpe_dropout: float = option(
        0.0, "the same of a target word's", within=BELOW_ONE, needs=_CODES, makes=[FeedSettings]
    )
    src_max_len: int = option(
        50, "tokens kept of a training source; 0 keeps all", within=NOT_NEGATIVE, makes=[FeedSettings]
    )
    tgt_max_len: int = option(
        50, "tokens kept of a training target; 0 keeps all", within=NOT_NEGATIVE, makes=[FeedSettings]
    )
    max_train: int = option(0, "no effect, as in the original: a training text is read to its end")
    num_buckets: int = option(
        5, "length classes that batches are cut from; 1 or less: one class", needs=BY_SENTENCES, makes=[FeedSettings]
    )
    pool_batches: int = option(
        1,
        "sentences of so many batches of a class are put in order of length before they are cut: 100 leaves little "
        "padding",
        within=POSITIVE,
        needs=BY_SENTENCES,
        makes=[FeedSettings],
    )
