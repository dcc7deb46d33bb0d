"""Finds a model's best length penalty by BLEU on the development text.

    python -m nmt.tune_search --model=model [--weights=0,0.5,1] [--beam_width=5] [--dev_prefix=data/dev]

translates the development text of the model's run with each --length_penalty_weight, alone or with mpirun -n N.
It prints a table of BLEU (sacreBLEU on the text's own tokens) and relative lengths, then the best flag.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.core.errors import InputError
from nmt.core.ranks import call_on_root
from nmt.options.config import Config
from nmt.options.option import POSITIVE, check_each, option
from nmt.runs import inputs
from nmt.runs.program import run_on_ranks
from nmt.runs.tfdist_ranks import Processes
from nmt.runs.trained_model import find
from nmt.runs.translation_run import load, searching
from nmt.scoring.score import sacre_bleu
from nmt.scoring.tokenisation import is_without_spaces, tokenised
from nmt.search.translation_model import translate_shared
from nmt.text.tokens import reference_text

_BEAM_WIDTH = 5
_HEAD = "{}, beam {}, {}\n--length_penalty_weight   BLEU  words to one of the reference"


@dataclass(frozen=True)
class TuneOptions:
    """Command-line options of `nmt.tune_search`."""

    title: ClassVar[str] = "options"
    SPELT: ClassVar[dict[str, str]] = {"length_penalty_weight": "weights", "ckpt": "model"}
    PASSED_ON: ClassVar[Sequence[str]] = ("dev_prefix", "infer_batch_size", "shortlist", "precision")

    model: str | None = option(None, "Directory of the run, or checkpoint; several form an ensemble.", required=True)
    dev_prefix: str | None = option(None, "Prefix of the text to score on; unset: the run's development text.")
    weights: str = option("0,0.2,0.4,0.6,0.8,1,1.2,1.4", "Weights to try, separated by commas.")
    beam_width: int | None = option(None, "Hypotheses; unset: the run's beam width, or 5.", within=POSITIVE)
    infer_batch_size: int | None = option(None, "Sentences in a batch; unset: the run's value.", within=POSITIVE)
    shortlist: str | None = option(None, "Same as the flag of nmt.nmt.")
    precision: str | None = option(None, "Format of matrix products, same as the flag of nmt.nmt; unset: the run's.")

    @property
    def each_weight(self) -> list[float]:
        """The length penalty weights to try.

        Raises:
            InputError: an entry is not a number.
        """
        try:
            return [float(one) for one in self.weights.split(",")]
        except ValueError:
            raise InputError(f"--weights={self.weights}: give numbers separated by commas, as 0,0.5,1") from None

    def given(self) -> dict[str, Any]:
        """Return the options of `nmt.nmt` that translate with these options, without the length penalty."""
        given = {name: getattr(self, name) for name in self.PASSED_ON}
        return given | {
            "infer_mode": "beam_search",
            "num_translations_per_input": 1,
            "beam_width": self.beam_width or 1,
        }


def tune(options: TuneOptions, ranks: Processes) -> None:
    """Translate and score with each weight; print a line for each, then the best flags.

    Collective: every rank calls, with equal options.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
    """
    tell = functools.partial(print, flush=True)
    configs, saved = call_on_root(ranks, lambda: _configured(options))
    lines, references = call_on_root(ranks, lambda: _read(configs[0]))
    trained = load(configs[0], saved, ranks)
    scored: list[tuple[float, float]] = []
    language = configs[0].tgt if is_without_spaces(str(configs[0].tgt)) else None
    for config in configs:
        model = searching(trained, config, ranks)
        found = [best for best, *_ in translate_shared(model, lines, ranks)]
        bleu = sacre_bleu(found, references, language)
        texts = (tokenised(text, language) if language else text for text in (found, references))
        words, wanted = (sum(len(line.split()) for line in text) for text in texts)
        if not scored:
            call_on_root(
                ranks, functools.partial(tell, _HEAD.format(config.dev_prefix, config.beam_width, bleu.signature))
            )
        line = f"{config.length_penalty_weight:23g}  {bleu.score:5.2f}  {words / max(1, wanted):.3f}"
        call_on_root(ranks, functools.partial(tell, line))
        scored.append((bleu.score, config.length_penalty_weight))
    best = max(scored, key=lambda one: (one[0], -abs(one[1])))
    width = configs[0].beam_width
    more = "" if saved.get("beam_width") == width else f"--beam_width={width} "  # else nmt.nmt refuses the weight
    call_on_root(ranks, functools.partial(tell, f"{more}--length_penalty_weight={best[1]:g}"))


def _read(config: Config) -> tuple[list[str], list[str]]:
    """Return the source lines, and the references without subword marks."""
    text = inputs.open_text(config, config.dev_prefix)
    return list(text.src), [reference_text(line, config.subword_option) for line in text.tgt]


def _configured(options: TuneOptions) -> tuple[list[Config], dict[str, Any]]:
    """Return the run's options with each weight, and the contents of its `hparams` file."""
    weights = options.each_weight
    config, saved = find(str(options.model), options.given() | {"length_penalty_weight": weights[0]})
    if config.dev_prefix is None:
        raise InputError(f"the run of --model={options.model} names no development text: give --dev_prefix")
    width = options.beam_width or saved.get("beam_width") or _BEAM_WIDTH
    each = [dataclasses.replace(config, beam_width=width, length_penalty_weight=weight) for weight in weights]
    for one in each:
        check_each(one)
    return each, saved


def main(argv: Sequence[str]) -> int:
    """Run the command on this rank; return its exit code."""
    return run_on_ranks(tune, TuneOptions, __doc__, argv, "tune_search")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
