"""Options of inference (translating a file): input, output and search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmt.core.files import check_no_input, raw_path
from nmt.options.configuration_options import ConfigurationOptions
from nmt.options.option import FINITE, NOT_NEGATIVE, POSITIVE, Condition, option

MODES = ("greedy", "sample", "beam_search")

_BEAM = Condition("beam search: give --beam_width, too", lambda config: config.search_mode == "beam_search")
# A file of options may have a width for other starts.
_NOT_OTHERWISE = Condition("--infer_mode=beam_search", lambda config: _BEAM.holds(config) or config.hparams_path)
_SAMPLE = Condition("--infer_mode=sample", lambda config: config.search_mode == "sample")


NO_HPARAMS = ": there is no hparams file next to the checkpoint that has them"


@dataclass(frozen=True)
class InferenceOptions(ConfigurationOptions):
    """Options of translation; those of the search also apply to evaluations in training."""

    title: ClassVar[str] = "inference"

    ckpt: str = option(
        "", "checkpoint, or several separated by commas (an ensemble); empty: the latest in out_dir", saved=False
    )
    inference_input_file: str | None = option(None, "file to translate; unset: the program trains", saved=False)
    inference_output_file: str | None = option(None, "file that the translations are written to", saved=False)
    src_max_len_infer: int | None = option(
        None,
        "tokens that a source is cut to when it is translated or scored; unset or 0: no limit",
        within=NOT_NEGATIVE,
    )
    tgt_max_len_infer: int | None = option(
        None,
        "greatest length of a translation in tokens; unset or 0: twice the source's length, plus 10",
        within=NOT_NEGATIVE,
    )
    min_length: int = option(0, "least length of a translation in tokens, without its end mark", within=NOT_NEGATIVE)
    ban_unk_token: bool = option(False, "never write <unk> into a translation")
    shortlist: str | None = option(
        None,
        "file of nmt.shortlist with the allowed translations of each source word; unset: all words are allowed",
        saved=False,
    )
    inference_list: str | None = option(
        None, "line numbers (from 0, separated by commas) to translate; unset: all lines", saved=False
    )
    inference_ref_file: str | None = option(None, "reference file to score the translations with", saved=False)
    infer_batch_size: int = option(32, "number of sentences translated together", within=POSITIVE)
    infer_mode: str | None = option(
        None,
        "search method; unset: beam_search if beam_width > 0, else sample if sampling_temperature > 0, else greedy",
        allowed=MODES,
    )
    beam_width: int = option(
        0,
        "number of hypotheses in beam search; 0: no beam search",
        within=NOT_NEGATIVE,
        needs=_NOT_OTHERWISE,
    )
    length_penalty_weight: float = option(0.0, "exponent of beam search's length penalty", within=FINITE, needs=_BEAM)
    coverage_penalty_weight: float = option(
        0.0,
        "weight of beam search's coverage penalty, which needs attention; 0: none",
        within=FINITE,
        needs=_BEAM,
    )
    sampling_temperature: float = option(
        0.0,
        "divisor of the logits before a word is drawn; 0: no sampling",
        within=NOT_NEGATIVE,
        needs=_SAMPLE,
    )
    num_translations_per_input: int = option(1, "translations of each line, best first", within=POSITIVE)
    jobid: int = option(0, "no effect: the rank under mpirun replaces it", saved=False)
    num_workers: int = option(1, "must be 1: to share a text among N processes, use mpirun -n N", saved=False)

    @property
    def is_inference(self) -> bool:
        """True if the run translates a file instead of training."""
        return self.inference_input_file is not None

    @property
    def search_mode(self) -> str:
        """The search method: "greedy", "sample" or "beam_search"."""
        sampled = "sample" if self.sampling_temperature else "greedy"
        return self.infer_mode or ("beam_search" if self.beam_width else sampled)

    @property
    def translations(self) -> int:
        """Number of translations of each line that the search finds."""
        found = {"greedy": 1, "sample": self.num_translations_per_input, "beam_search": self.beam_width}
        return min(self.num_translations_per_input, found[self.search_mode])

    def file_contradictions(self, of_model: bool) -> Iterator[str]:
        """Yield a message for each file option that is missing, or that the kind of run does not use."""
        needed = ["src", "tgt", "vocab_prefix"]
        if not of_model:
            needed += ["inference_output_file"] if self.is_inference else ["train_prefix", "dev_prefix", "out_dir"]
        missing = [f"--{name}" for name in needed if not getattr(self, name)]
        if missing:
            model = self.is_inference and not self.override_loaded_hparams and missing != ["--inference_output_file"]
            unsaid = NO_HPARAMS if model and (self.ckpt or self.out_dir) else ""
            yield f"{', '.join(missing)} must be given{unsaid}"
        if self.is_inference and not (self.ckpt or self.out_dir):
            yield "--inference_input_file needs --ckpt or --out_dir, where the checkpoint is"
        if self.is_inference and self.inference_output_file:
            check_no_input("inference_output_file", self.inference_output_file, self._read_files())
        if self.inference_output_file and not self.is_inference:
            yield "--inference_output_file needs --inference_input_file, the text to translate"
        if self.src == self.tgt and not self.language_model:
            yield f"--src={self.src} and --tgt={self.tgt} name the same files: give two suffixes"
        if self.ckpt and not (self.is_inference or of_model):
            yield "--ckpt is for inference: give --inference_input_file, or continue a run by its --out_dir"
        for name in ("inference_list", "inference_ref_file"):
            if getattr(self, name) and not self.is_inference:
                yield f"--{name} needs --inference_input_file, the text to translate"

    def _read_files(self) -> Iterator[str | Path]:
        """Yield the files that a translation reads, but for checkpoints."""
        yield from (f"{self.vocab_prefix}.{suffix}" for suffix in (self.src, self.tgt))
        yield from filter(None, (self.inference_input_file, self.shortlist, self.hparams_path))
        if self.inference_ref_file:
            yield from (self.inference_ref_file, raw_path(self.inference_ref_file))

    def search_contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction of these options with each other, or with those of the model."""
        mode = self.search_mode
        if mode == "beam_search" and not self.beam_width:
            yield "--infer_mode=beam_search needs --beam_width more than 0"
        if mode == "sample" and not self.sampling_temperature:
            yield "--infer_mode=sample needs --sampling_temperature more than 0"
        if mode == "greedy" and self.num_translations_per_input > 1:
            yield "--num_translations_per_input needs --infer_mode=beam_search or sample: greedy has one"
        if mode == "beam_search" and 0 < self.beam_width < self.num_translations_per_input:
            yield (
                f"--num_translations_per_input={self.num_translations_per_input} is more than the {self.beam_width} "
                "translations that --beam_width finds: give a wider beam, or ask for fewer"
            )
        for name in ("use_char_encode", "language_model"):
            if self.shortlist and getattr(self, name):
                yield f"--shortlist needs the words of a source, which --{name} does not have: leave one out"
        if self.coverage_penalty_weight and not self.attends:
            needed = "a source, which --language_model has not" if self.language_model else "--attention"
            yield f"--coverage_penalty_weight needs {needed}, whose weights it adds up"
        if self.most_positions is not None:
            for name, tokens in (
                ("tgt_max_len_infer", self.tgt_max_len_infer or 0),
                ("min_length", self.min_length + 1),
            ):
                if tokens > self.most_positions:
                    yield (
                        f"--{name}={getattr(self, name)} asks for longer translations than --max_positions="
                        f"{self.most_positions} allows (the end mark counts): give a smaller number"
                    )
        if self.tgt_max_len_infer and self.min_length >= self.tgt_max_len_infer:
            yield (
                f"--min_length={self.min_length} does not fit --tgt_max_len_infer={self.tgt_max_len_infer}, which "
                "counts the end mark, too: lower --min_length or raise --tgt_max_len_infer"
            )
        if self.num_workers != 1:
            yield (
                f"--num_workers={self.num_workers}: start the program as mpirun -n {self.num_workers} instead; the "
                "ranks share the text, and no --jobid is needed"
            )
