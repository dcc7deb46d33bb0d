"""Settings: ``TFDIST_*`` variables and ``tfdist.configure``, each with its default, check and meaning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.core import exclusions
from tfdist.core.environment import variables
from tfdist.core.log import LEVELS
from tfdist.core.suggestions import meant, normalised
from tfdist.core.wires import FORMATS

_PREFIX = "TFDIST_"

# There a bucket must travel while the next gradients are computed: at 1 Gbit/s this takes a seventh of a second.
_BETWEEN_MACHINES_MB = 8.0

# Loss scales by name: none, and those that adapt. A number is a fixed scale.
_SCALES = "none", "backoff", "logmax", "window"
_STATES = "reset", "average", "keep"  # treatment of an optimizer's state at the end of a block
# Defaults of DiLoCo's outer optimizer (Douillard et al. 2023, section 3); inner optimizers keep their state.
_DILOCO = {"block_momentum": "0.9", "block_learning_rate": 0.7, "block_nesterov": True, "block_state": "keep"}

# TensorFlow's own collectives, in the graph. An engine exchanges the tensors that they do not support.
COLLECTIVES, NCCL = "collectives", "nccl"
IN_THE_GRAPH = COLLECTIVES, NCCL
ENGINES = ("auto", "mpi", *IN_THE_GRAPH)


class SettingsError(ValueError):
    """A setting is misspelt, unknown, out of its range, or contradicts another one."""


def _number(kind: Callable[[str], Any], fits: Callable[[Any], bool]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not fits(value):
            raise ValueError
        return value

    return parse


def _or_nothing(parse: Callable[[str], Any]) -> Callable[[str], str]:
    def as_it_is(text: str) -> str:
        if text:
            parse(text)
        return text

    return as_it_is


_positive = _number(float, lambda value: 0 < value < math.inf)
_share = _number(float, lambda value: 0 <= value <= 1)
_count = _number(int, lambda value: value >= 0)
_from_one = _number(int, lambda value: value >= 1)
_positive_or_nothing = _or_nothing(_positive)
_momentum_or_nothing = _or_nothing(_number(float, lambda value: 0 <= value < 1))


def _switch(text: str) -> bool:
    if text not in ("0", "1", "False", "True"):
        raise ValueError
    return text in ("1", "True")


def _scale(text: str) -> str:
    return text if text in _SCALES or _positive(text) else ""


def _when(text: str) -> str:
    return text if text in ("off", "auto") else str(_from_one(text))


def _one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse


def _setting(default: Any, parse: Callable[[str], Any], allowed: str | Sequence[str], meaning: str, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"parse": parse, "allowed": allowed, "meaning": meaning, **more})


def _part(of: str, name: str, default: Any, parse: Callable[[str], Any], allowed: str | Sequence[str]) -> Any:
    """Return the field of a part, which follows the value of a setting: ``sync=bmuf:steps=16``."""
    return _setting(default, parse, allowed, f"of {of}", of=of, part=name)


def _handshake(default: Any, parse: Callable[[str], Any], allowed: str, meaning: str) -> Any:
    """Return the field of a setting that a launcher or a test passes to the ranks. Users do not set it."""
    return _setting(default, parse, allowed, meaning, handshake=True)


def _choice(default: str, allowed: Sequence[str], meaning: str) -> Any:
    return _setting(default, _one_of(allowed), allowed, meaning)


def allowed(field: dataclasses.Field[Any]) -> str:
    """Return the values that a setting takes, as text."""
    values = field.metadata["allowed"]
    return values if isinstance(values, str) else " | ".join(values)


def _seconds(default: float, meaning: str) -> Any:
    return _setting(default, _positive, "a number above 0", meaning)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The parsed settings. Each is a variable: ``TFDIST_`` and its name in capitals.

    Some have parts, which follow the value: ``TFDIST_SYNC=bmuf:steps=16:momentum=0.9``. In ``configure`` each part has
    its own name, for example ``block_steps``.

    ::

        tfdist.Settings.from_environment().bucket_mb  # MiB

    Attributes:
      origins: source of the value, for each setting that has been set.
      foreign: variables that begin with ``TFDIST_`` and resemble no setting, for example of a module system.
    """

    bucket_mb: float = _setting(
        64.0, _positive, "a number above 0", f"MiB of a bucket of gradients; {_BETWEEN_MACHINES_MB:g} between machines"
    )
    engine: str = _choice(
        "auto", ENGINES, "how the ranks add; auto: in memory of the machine where they can, else by MPI"
    )
    interface: str = _part("engine", "interface", "", str, "a network interface's name")
    compression: str = _choice(
        "none", tuple(FORMATS), "dtype in which gradients or changes travel; int8, int4, int2: between machines"
    )
    sparse: str = _choice(
        "auto", ("auto", "dense", "gather", "unmerged"), "how rows of IndexedSlices travel; auto counts bytes"
    )
    accumulate_steps: int = _setting(
        1, _from_one, "a whole number from 1 on", "steps whose gradients are added up, exchanged and applied as one"
    )
    autoshard: bool = _setting(False, _switch, "0 or 1", "each rank trains with its share of model.fit's data")
    sync: str = _choice(
        "gradients", ("gradients", "average", "bmuf", "diloco"), "what the ranks exchange, and how often"
    )
    block_steps: int = _part("sync", "steps", 0, _count, "a whole number")
    block_momentum: str = _part("sync", "momentum", "", _momentum_or_nothing, "a number from 0 to below 1")
    block_learning_rate: float = _part("sync", "learning_rate", 1.0, _positive, "a number above 0")
    block_scale: str = _part("sync", "scale", "", _positive_or_nothing, "a number above 0")
    block_nesterov: bool = _part("sync", "nesterov", False, _switch, "0 or 1")
    block_state: str = _part("sync", "state", "reset", _one_of(_STATES), _STATES)
    block_warmup: int = _part("sync", "warmup", 0, _count, "a whole number")
    block_fragments: int = _part("sync", "fragments", 1, _from_one, "a whole number from 1 on")
    block_delay: int = _part("sync", "delay", 0, _count, "a whole number")
    block_alpha: float = _part("sync", "alpha", 0.5, _share, "a number from 0 to 1")
    larc: str = _choice(
        "off", ("off", "clip", "scale"), "a rate for each variable, from its norm and the norm of its gradient"
    )
    larc_eta: float = _part("larc", "eta", 0.001, _positive, "a number above 0")
    mixed_precision: str = _choice("none", ("none", "bf16", "fp16"), "dtype in which products are computed")
    loss_scale: str = _setting(
        "none",
        _scale,
        " | ".join((*_SCALES, "a number above 0")),
        "factor of the loss; updates that overflow are left out",
    )
    loss_scale_tolerance: float = _part("loss_scale", "tolerance", 0.0, _share, "a number from 0 to 1")
    divergence: str = _choice("off", ("off", "warn", "stop"), "action if gradients are not finite or keep growing")
    check: str = _setting(
        "auto",
        _when,
        "off | auto | a whole number from 1 on",
        "how often the ranks' variables are compared; a number: after each so many steps",
    )
    log_level: str = _choice("info", tuple(LEVELS), "what is logged; trace: each exchange of each rank")
    wait_table: int = _setting(0, _count, "a whole number", "steps after which waits are logged as a table; 0: never")
    timeline: str = _setting("", str, "a file name", "Chrome trace of waits, copies and reductions, written at exit")
    trace_folder: str = _setting("", str, "a folder", "for flight recorders, which are kept after a failure")
    stall_seconds: float = _seconds(60.0, "wait after which the missing ranks are logged")
    stall_abort_seconds: float = _seconds(600.0, "wait after which the job ends")
    stall_alone_seconds: float = _seconds(14_400.0, "work inside tfdist.alone after which the job ends")
    outlive_launcher: bool = _setting(False, _switch, "0 or 1", "ranks continue when mpirun or its daemon is killed")
    node_size: int = _handshake(0, _count, "a whole number", "ranks taken for one node (tests); 0: as the machines are")
    job: str = _handshake("", str, "a name", "name of this job, the same in each attempt")
    restarts: int = _handshake(0, _count, "a whole number", "earlier attempts of this job")
    ddl_options: str = _setting("", str, "options", "options of IBM's DDL", handshake=True, variable="DDL_OPTIONS")
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    foreign: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return all settings by name, with parts and with those that launchers pass."""
        return {field.name: field for field in dataclasses.fields(cls) if field.metadata}

    @classmethod
    def documented(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the settings for users by name, without parts."""
        return {n: f for n, f in cls.fields().items() if not {"of", "handshake"} & f.metadata.keys()}

    @classmethod
    def parts(cls, of: str) -> dict[str, str]:
        """Return the names of a setting's parts. The keys are the spellings behind its value."""
        return {f.metadata["part"]: n for n, f in cls.fields().items() if f.metadata.get("of") == of}

    @classmethod
    def written(cls, name: str) -> str:
        """Return the spelling of a setting or a part in the environment."""
        metadata = cls.fields()[name].metadata
        if of := metadata.get("of"):
            return f"{_PREFIX}{of.upper()}=...:{metadata['part']}="
        variable: str = metadata.get("variable", _PREFIX + name.upper())
        return variable

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Parse the settings.

        Raises:
          SettingsError: a value is not allowed, or a variable resembles a setting. The message names the setting.
        """
        environment = variables() if environment is None else environment
        found, fields = {}, cls.fields()
        names, foreign = {cls.written(n): n for n, f in fields.items() if "of" not in f.metadata}, []
        parts = {_PREFIX + n.upper(): cls.written(n) for n, f in fields.items() if "of" in f.metadata}
        for variable, text in environment.items():
            if variable in names:
                found[names[variable]] = (text, variable)
            elif normalised(variable).startswith(normalised(_PREFIX)):
                if (near := meant(variable, [*names, *parts])) in parts:
                    raise SettingsError(f"{variable}={text} is a part of another setting: {parts[near]}{text}")
                if near:
                    raise SettingsError(f"{variable} is not a setting; is {near} meant? Correct it, or unset it")
                foreign += [variable] * variable.startswith(_PREFIX)
        settings = cls()._with(found, {name: variable for name, (_, variable) in found.items()})
        return dataclasses.replace(settings, foreign=tuple(sorted(foreign)))

    def between_machines(self) -> Settings:
        """Return the settings for a job on several machines, where ``bucket_mb`` has another default."""
        return self if "bucket_mb" in self.origins else dataclasses.replace(self, bucket_mb=_BETWEEN_MACHINES_MB)

    def configured(self, **values: Any) -> Settings:
        """Return a copy with other values, as ``tfdist.configure`` sets them.

        Raises:
          SettingsError: as in ``from_environment``, or the setting is read only at the import.
        """
        for name in values.keys() & self.fields().keys() - set(CONFIGURABLE):
            raise SettingsError(
                f"tfdist.configure: {name} is read when tfdist is imported: set {self.written(name)} in the "
                f"environment before that (configure takes {', '.join(CONFIGURABLE)})"
            )
        texts = {name: (str(value), f"tfdist.configure: {name}") for name, value in values.items()}
        return self._with(texts, dict.fromkeys(values, CONFIGURE))

    def with_values(self, values: Mapping[str, str], origin: str) -> Settings:
        """Return a copy with other values, as texts by the settings' names; ``origin`` is their source."""
        texts = {name: (text, f"{origin}: {name}") for name, text in values.items()}
        return self._with(texts, dict.fromkeys(values, origin))

    def _with(self, texts: Mapping[str, tuple[str, str]], origins: Mapping[str, str]) -> Settings:
        fields = self.fields()
        values: dict[str, Any] = {}
        found: dict[str, str] = {}
        for name, (text, shown) in texts.items():
            if name not in fields:
                near, names = meant(name, fields), ", ".join(_PREFIX + n.upper() for n in self.documented())
                told = f"is {near} meant?" if near else f"the settings are: {names}"
                raise SettingsError(f"{shown} is not a setting; {told}")
            parts = self.parts(name)
            value, *more = text.split(":") if parts else [text]
            given = {name: (value, shown)}
            for entry in more:
                part, _, of_part = entry.partition("=")
                if part not in parts:
                    raise SettingsError(
                        f"{shown}={text!r}: {part!r} is not a part of this setting; after the value it takes "
                        f"{', '.join(parts)}, as in {name}={value}:{next(iter(parts))}=..."
                    )
                given[parts[part]] = (of_part, f"{shown}: {part}")
            for one, (own, place) in given.items():
                try:
                    values[one] = fields[one].metadata["parse"](own)
                except ValueError:
                    takes = allowed(fields[one])
                    raise SettingsError(f"{place}={own!r} is out of range; it takes {takes}") from None
                found[one] = origins[name]
        settings = dataclasses.replace(self, **values, origins={**self.origins, **found})
        settings._check()
        return settings

    def _check(self) -> None:
        """Raise a ``SettingsError`` if settings contradict each other."""
        if self.sync == "gradients":
            if not FORMATS[self.compression].of_gradients:
                raise SettingsError(
                    exclusions.FEW_BITS_AND_GRADIENTS.told(self._named("compression"), self._named("sync"))
                )
            return
        if not self.block_steps:
            raise SettingsError(
                f"{self._named('sync')}, but {self._named('block_steps')}: set after how many steps the ranks average "
                f"their variables ({_PREFIX}SYNC={self.sync}:steps=16), or leave {_PREFIX}SYNC at 'gradients'"
            )
        fields, excluded = self.fields(), [(exclusions.LOCAL_AND_HELD, "accumulate_steps")]
        excluded.append((exclusions.LOCAL_AND_SCALED, "loss_scale"))
        if self.sync == "average":
            filters = "block_momentum", "block_learning_rate", "block_scale", "block_nesterov"
            excluded += [(exclusions.PLAIN_AND_FILTER, name) for name in filters]
        if self.block_scale and "block_learning_rate" in self.origins:
            raise SettingsError(
                exclusions.SCALE_AND_RATE.told(self._named("block_scale"), self._named("block_learning_rate"))
            )
        if not self.block_warmup:
            excluded.append((exclusions.LOCAL_AND_SPARSE, "sparse"))
        for exclusion, name in excluded:
            value = getattr(self, name)
            plain = name == "block_momentum" and float(value or 0) == 0  # an average is that
            if value != fields[name].default and not plain:
                raise SettingsError(exclusion.told(self._named("sync"), self._named(name)))
        self._check_fragments()

    def of_blocks(self, name: str) -> Any:
        """Return the value of a setting whose default depends on ``sync``."""
        value, usual = getattr(self, name), self.fields()[name].default
        own = self.sync == "diloco" and name not in self.origins and value == usual
        return _DILOCO.get(name, value) if own else value

    def _check_fragments(self) -> None:
        """Raise a ``SettingsError`` if fragments and their delay do not fit into a block."""
        steps, fragments = self._named("block_steps"), self._named("block_fragments")
        state = self.of_blocks("block_state")
        if (self.block_fragments > 1 or self.block_delay) and state != "keep":
            streamed = f"{fragments} and {self._named('block_delay')}"
            raise SettingsError(exclusions.STREAMED_AND_STATE.told(streamed, f"block_state is {state!r}"))
        if self.block_steps % self.block_fragments:
            fitting = -(-self.block_steps // self.block_fragments) * self.block_fragments
            raise SettingsError(
                f"{steps}, but {fragments}: each fragment is exchanged once in a block, after as many steps as the one "
                f"before. Set a multiple of {self.block_fragments}, for example {fitting} steps"
            )
        between = self.block_steps // self.block_fragments
        if self.block_delay > between:
            raise SettingsError(
                f"{self._named('block_delay')}, but {steps} and {fragments}: an exchange begins every {between} steps, "
                f"and must end before the next. Set a delay of at most {between}"
            )

    def _named(self, name: str) -> str:
        shown = name if "of" in self.fields()[name].metadata else self.written(name)
        return f"{shown} is {getattr(self, name)!r}"

    @property
    def not_each_step(self) -> str:
        """The settings by which not every step is an update, as text; empty if each step is one."""
        why = [f"accumulate_steps={self.accumulate_steps}"] if self.accumulate_steps > 1 else []
        why += [f"loss_scale={self.loss_scale}"] if self.loss_scale != "none" else []
        return ", ".join(why)

    @property
    def changes_updates(self) -> bool:
        """Whether these settings change the updates of a single process."""
        return bool(self.not_each_step) or self.divergence != "off" or self.larc != "off"

    @property
    def affects_one_process(self) -> bool:
        """Whether these settings change the training of a single process."""
        return self.changes_updates or self.mixed_precision != "none"

    def without_effect(self, machines: int = 1) -> list[str]:
        """Return a line for each setting that was set and has no effect on so many machines."""
        told = []
        if FORMATS[self.compression].wire is not None and machines == 1:
            told.append(f"{self._named('compression')}: without effect on one machine, where float32 costs no more")
        if self.sync == "gradients" and (idle := sorted(n for n in self.origins if n.startswith("block_"))):
            names = ", ".join(map(self._named, idle))
            told.append(f"{names}: without effect, as {self._named('sync')} (average, bmuf and diloco have blocks)")
        if "block_alpha" in self.origins and not self.block_delay and self.sync != "gradients":
            told.append(f"{self._named('block_alpha')}: without effect, as {self._named('block_delay')}")
        if self.loss_scale != "none" and self.mixed_precision == "none":
            told.append(
                f"{self._named('loss_scale')}, but {self._named('mixed_precision')}: without effect unless the script "
                "itself computes in half precision"
            )
        if self.larc == "off" and "larc_eta" in self.origins:
            told.append(f"{self._named('larc_eta')}: without effect, as {self._named('larc')}")
        if self.loss_scale != "window" and "loss_scale_tolerance" in self.origins:
            told.append(f"{self._named('loss_scale_tolerance')}: without effect, as {self._named('loss_scale')}")
        return told


CONFIGURE = "tfdist.configure"  # a value of ``origins``
# Settings that affect the building of graphs. The others are read once, when tfdist is imported.
CONFIGURABLE = (
    *("bucket_mb", "compression", "sparse", "accumulate_steps", "sync", "divergence"),
    *("mixed_precision", "loss_scale", "loss_scale_tolerance", "larc", "larc_eta"),
    *("block_steps", "block_momentum", "block_learning_rate", "block_scale", "block_nesterov", "block_state"),
    *("block_warmup", "block_fragments", "block_delay", "block_alpha"),
)
# Settings that may differ between the ranks.
_OWN = {"log_level", "stall_seconds", "stall_abort_seconds", "stall_alone_seconds", "timeline", "trace_folder"}


def settings_difference(ranks: Sequence[Settings]) -> str:
    """Return the first setting that differs between ranks, as an error message; empty if there is none."""
    for name in Settings.fields().keys() - _OWN:
        first = getattr(ranks[0], name)
        for rank, settings in enumerate(ranks):
            other = getattr(settings, name)
            if other != first:
                return (
                    f"{ranks[0]._named(name)} on rank 0, but {other!r} on rank {rank}: give all ranks the "
                    "same value (Open MPI's mpirun passes variables to other machines with -x)"
                )
    return ""
