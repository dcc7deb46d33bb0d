"""Configuration of a run: all options of `nmt.nmt` with their values, and the file `hparams` that saves them.

The modules of the groups define the options. The groups' order in the help text: data, model, training, processors,
reports, configuration, inference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nmt.core.errors import InputError
from nmt.options.inference_options import InferenceOptions
from nmt.options.option import options_of, types_of


@dataclass(frozen=True)
class Config(InferenceOptions):
    """All options with their values. Lengths are in tokens, batch sizes in sentences, intervals in steps (updates)."""

    def check_together(self, of_model: bool = False) -> None:
        """Check that the options do not contradict each other and that no required option is missing.

        Args:
            of_model: True for a program that uses a model, and trains none and translates no file.

        Raises:
            InputError: two options contradict each other, or an option is missing.
        """
        for message in (
            *self.file_contradictions(of_model),
            *self.model_contradictions(),
            *self.decay_contradictions(),
            *self.batch_contradictions(),
            *self.pass_contradictions(),
            *self.search_contradictions(),
        ):
            raise InputError(message)

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Check that each given option has an effect, if its value is not the default.

        Args:
            given: options of the command line or of a file of options, by name.

        Raises:
            InputError: an option would have no effect.
        """
        for name, value in given.items():
            if name in FIELDS and value != FIELDS[name].default:
                for needs in self.missing(name):
                    raise InputError(f"--{name}={value} would have no effect: it needs {needs}")
        for message in self.warmup_contradiction(given):
            raise InputError(message)

    def check_training(self, before: Mapping[str, Any]) -> None:
        """Check the options that matter in training only: a model trained with other options still translates.

        Args:
            before: options of the last start of a continued run, by name; empty for a new run.

        Raises:
            InputError: options contradict each other, or those in `before`.
        """
        defaults = {name: field.default for name, field in FIELDS.items()}
        as_before = set(replace(self, **before).look_contradictions()) if before else ()  # accepted before
        for message in (
            *self.loss_contradictions(),
            *self.beginning_contradictions(before),
            *(message for message in self.look_contradictions() if message not in as_before),
            *(self.plateau_contradictions(defaults | dict(before)) if before else ()),
        ):
            raise InputError(message)

    def missing(self, name: str) -> Iterator[str]:
        """Yield the text of each condition that an option lacks to have an effect."""
        needs = FIELDS[name].metadata["needs"]
        if needs and not needs.holds(self):
            yield needs.text
        families = FIELDS[name].metadata["families"]
        if families and self.model_family not in families:
            yield f"another --model_family: {' or '.join(families)}"

    def to_json(self, **more: Any) -> str:
        """Return the text of the `hparams` file: JSON of the saved options and `more`, sorted, indented by 4."""
        kept = {name: getattr(self, name) for name, field in FIELDS.items() if field.metadata["saved"]}
        return json.dumps(kept | more, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


FIELDS = options_of(Config)
TYPES = types_of(Config)
