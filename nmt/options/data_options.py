"""Options of the data: texts, vocabularies, subwords and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nmt.options.option import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, Condition, option

SUBWORD_OPTIONS = ("", "bpe", "spm")

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
    """Options of the texts, the vocabularies and the cut of batches."""

    title: ClassVar[str] = "data"

    src: str | None = option(None, "suffix of the source files, such as en", fixed=True)
    tgt: str | None = option(None, "suffix of the target files, such as de", fixed=True)
    train_prefix: str | None = option(
        None, "prefix of the training text's files: <train_prefix>.<src> and <train_prefix>.<tgt>"
    )
    dev_prefix: str | None = option(None, "prefix of the development text: <dev_prefix>.<src> and <dev_prefix>.<tgt>")
    test_prefix: str | None = option(None, "prefix of the test text's files; unset: no test text")
    vocab_prefix: str | None = option(
        None, "prefix of the vocabulary files: <vocab_prefix>.<src> and <vocab_prefix>.<tgt>"
    )
    out_dir: str | None = option(None, "directory of the run's checkpoints, logs and translations", saved=False)
    sos: str = option("<s>", "token that marks the start of a sentence", fixed=True)
    eos: str = option("</s>", "token that marks the end of a sentence", fixed=True)
    share_vocab: bool = option(
        False,
        "use the source's vocabulary and embedding for the target, too",
        fixed=True,
    )
    check_special_token: bool = option(
        True, "add <unk>, sos and eos to the front of a vocabulary that does not begin with them", fixed=True
    )
    max_unknown_share: float = option(
        0.3,
        "greatest share of a training or development text's tokens that are not in the vocabulary; 1: no limit",
        within=SHARE,
    )
    use_char_encode: bool = option(
        False,
        "read source words as sequences of characters, without a source vocabulary",
        fixed=True,
    )
    embed_prefix: str | None = option(
        None, "prefix of the pretrained embeddings: <embed_prefix>.<src> and <embed_prefix>.<tgt>; unset: none"
    )
    subword_option: str = option(
        "",
        "notation of the subwords that translations are joined from; empty: tokens are words",
        allowed=SUBWORD_OPTIONS,
    )
    bpe_codes: str | None = option(
        None, "file bpe.codes that nmt.prepare has split the training text with; for BPE-dropout", needs=_DRAWN
    )
    src_bpe_dropout: float = option(
        0.0,
        "BPE-dropout of source words: probability that a BPE merge is skipped when a training line is read",
        within=BELOW_ONE,
        needs=_SOURCE_CODES,
    )
    tgt_bpe_dropout: float = option(
        0.0, "BPE-dropout of target words, as for source words", within=BELOW_ONE, needs=_CODES
    )
    src_max_len: int = option(50, "tokens that a training source is cut to; 0: no limit", within=NOT_NEGATIVE)
    tgt_max_len: int = option(50, "tokens that a training target is cut to; 0: no limit", within=NOT_NEGATIVE)
    max_train: int = option(0, "no effect, as in the TensorFlow NMT tutorial: the whole training text is read")
    num_buckets: int = option(5, "length buckets that batches are cut from; 1 or less: one bucket", needs=BY_SENTENCES)
    pool_batches: int = option(
        1,
        "number of batches of a bucket whose sentences are sorted by length together before they are cut into batches. "
        "100 leaves little padding",
        within=POSITIVE,
        needs=BY_SENTENCES,
    )
