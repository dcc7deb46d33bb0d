"""Options of the programs that translate with a trained model: the model, and the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.core.errors import InputError
from nmt.options.config import Config
from nmt.options.option import FINITE, NOT_NEGATIVE, POSITIVE, option


@dataclass(frozen=True)
class SearchOptions:
    """Options of the model and of the search; an unset option is the run's."""

    title: ClassVar[str] = "model and search"
    SPELT: ClassVar[dict[str, str]] = {"ckpt": "model", "num_translations_per_input": "n_best"}
    PASSED_ON: ClassVar[Sequence[str]] = (
        "beam_width",
        "length_penalty_weight",
        "infer_batch_size",
        "tgt_max_len_infer",
        "precision",
    )

    model: str | None = option(
        None, "Directory of the run, or checkpoint; several, separated by commas, form an ensemble.", required=True
    )
    n_best: int = option(1, "Translations of each line, best first.", within=POSITIVE)
    beam_width: int | None = option(None, "Hypotheses of beam search; unset: the run's.", within=NOT_NEGATIVE)
    length_penalty_weight: float | None = option(None, "As for nmt.nmt; unset: the run's.", within=FINITE)
    infer_batch_size: int | None = option(None, "Sentences in a batch; unset: the run's.", within=POSITIVE)
    tgt_max_len_infer: int | None = option(None, "As for nmt.nmt; unset: the run's.", within=NOT_NEGATIVE)
    precision: str | None = option(None, "Format of matrix products, as for nmt.nmt; unset: the run's.")

    def search(self, run: Config, scored: bool = False) -> dict[str, Any]:
        """Return the options of `nmt.nmt` that these options set, by name.

        Args:
            run: options of the run.
            scored: whether translations need a score. Greedy search is a beam search of width 1, which has scores.

        Raises:
            InputError: more translations are asked for than the beam that is asked for finds.
        """
        given = {name: getattr(self, name) for name in self.PASSED_ON} | {"num_translations_per_input": self.n_best}
        mode, width = run.search_mode, run.beam_width if run.search_mode == "beam_search" else 0
        if self.beam_width is not None:
            mode, width = "beam_search" if self.beam_width else "greedy", self.beam_width
            if self.n_best > max(1, width):
                raise InputError(f"--n_best={self.n_best} is more than --beam_width={width} finds: give a wider beam")
        if scored or (self.n_best > 1 and mode == "greedy"):
            mode = "beam_search"
        if mode == "beam_search":
            given["beam_width"] = max(width, self.n_best)
        return given | {"infer_mode": mode}
