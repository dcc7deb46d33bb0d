"""Options of the programs that translate with a trained model: the model, and the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.options.option import FINITE, NOT_NEGATIVE, POSITIVE, option


@dataclass(frozen=True)
class SearchOptions:
    """Options of the model and of the search; an unset option is the run's."""

    title: ClassVar[str] = "model and search"
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

    def search(self, width_of_run: int, scored: bool) -> dict[str, Any]:
        """Return the options of `nmt.nmt` that these options set, by name.

        Args:
            width_of_run: the run's beam width.
            scored: whether translations need a score. Greedy search is a beam search of width 1, which has scores.
        """
        given = {name: getattr(self, name) for name in self.PASSED_ON}
        if self.n_best > 1 or scored:
            width = width_of_run if self.beam_width is None else self.beam_width
            given |= {"beam_width": max(width, self.n_best), "infer_mode": "beam_search"}
        return given | {"num_translations_per_input": self.n_best}
