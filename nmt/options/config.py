"""The configuration of a run: every option of `nmt.nmt` with its value, and the file `hparams` that keeps it.

The options themselves are in the modules of their groups, in the order of the help text: data, model, training,
processors, reports, configuration, inference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nmt.core.errors import InputError
from nmt.model.architecture import Architecture
from nmt.model.registry import FAMILIES
from nmt.options.inference_options import InferenceOptions
from nmt.options.option import options_of, types_of


@dataclass(frozen=True)
class Config(InferenceOptions):
    """Every option with its value: lengths in tokens, sizes in sentences, intervals in steps (updates)."""

    def check_together(self) -> None:
        """Checks that options do not contradict each other, and that what is needed is there.

        Raises:
            InputError: naming the options and the remedy.
        """
        for message in (
            *self.file_contradictions(),
            *self.model_contradictions(),
            *self.decay_contradictions(),
            *self.batch_contradictions(),
            *self.pass_contradictions(),
            *self.block_contradictions(),
            *self.search_contradictions(),
        ):
            raise InputError(message)

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Checks that what was asked for, and is not the default, has an effect.

        Args:
            given: on the command line or by a file of options.

        Raises:
            InputError: naming the options and the remedy.
        """
        for name, value in given.items():
            if name in FIELDS and value != FIELDS[name].default:
                for needs in self.missing(name):
                    raise InputError(f"--{name}={value} would have no effect: it needs {needs}")
        for message in self.warmup_contradiction(given):
            raise InputError(message)

    def check_training(self, before: Mapping[str, Any]) -> None:
        """Checks what matters to a run that trains alone: a model of any run translates.

        Args:
            before: the options that it was last started with; none if it begins.

        Raises:
            InputError: naming the options and the remedy.
        """
        defaults = {name: field.default for name, field in FIELDS.items()}
        as_before = set(replace(self, **before).look_contradictions()) if before else ()  # which it began with
        for message in (
            *self.loss_contradictions(),
            *(message for message in self.look_contradictions() if message not in as_before),
            *(self.plateau_contradictions(defaults | dict(before)) if before else ()),
        ):
            raise InputError(message)

    def missing(self, name: str) -> Iterator[str]:
        """What an option would need to have an effect, in words."""
        needs = FIELDS[name].metadata["needs"]
        if needs and not needs.holds(self):
            yield needs.text
        family = FAMILIES[self.model_family].architecture
        kinds = [
            made
            for made, _ in FIELDS[name].metadata["makes"]
            if isinstance(made, type) and issubclass(made, Architecture)
        ]
        if kinds and not any(issubclass(family, kind) for kind in kinds):
            fitting = [n for n, one in FAMILIES.items() if any(issubclass(one.architecture, kind) for kind in kinds)]
            yield f"another --model_family: {' or '.join(fitting)}"

    def to_json(self, **more: Any) -> str:
        """The `hparams` file: the options worth keeping, and `more`, sorted, indented by 4."""
        kept = {name: getattr(self, name) for name, field in FIELDS.items() if field.metadata["saved"]}
        return json.dumps(kept | more, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


FIELDS = options_of(Config)
TYPES = types_of(Config)
