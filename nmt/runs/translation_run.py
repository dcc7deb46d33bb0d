"""A run that translates a file: the ranks share its lines, and rank 0 writes."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nmt.checkpoints import checkpoint
from nmt.core.errors import InputError
from nmt.core.ranks import Ranks, check_equal, from_root, together
from nmt.model.inference_model import TrainedWeights
from nmt.options import derived_settings
from nmt.options.config import Config
from nmt.options.data_options import DataOptions
from nmt.options.derived_settings import RunSettings
from nmt.options.hparams_file import HPARAMS, read_saved
from nmt.options.model_options import ModelOptions
from nmt.options.option import options_of
from nmt.runs import inputs
from nmt.scoring.score import check_reference, score_files
from nmt.translate.ensemble import EnsembleWeights
from nmt.translate.translate_file import draw_attention, parse_list, translate_file
from nmt.translate.translation_model import TranslationModel


def infer(settings: RunSettings, saved: Mapping[str, Any], ranks: Ranks, untouched: inputs.Untouched) -> None:
    """Translates the input file by the checkpoint asked for, or the latest in out_dir.

    Collective: every rank calls.

    Args:
        settings: of the run.
        saved: the contents of the `hparams` file.
        ranks: who translates.
        untouched: in such a block, graphs are built as they are, without broadcasts of initial values.

    Raises:
        AgreedError: on every rank, for a user's mistake.
    """
    config = settings.config
    if config.inference_ref_file:  # before all the work
        files = str(config.inference_input_file), config.inference_ref_file
        from_root(ranks, lambda: check_reference(*files))
    trained = load(settings, saved, ranks, untouched)
    from_root(ranks, lambda: _tell_unknown(config, trained.vocabularies))
    with together(ranks), untouched():
        model = TranslationModel(trained.weights, *trained.vocabularies, settings.search)
    files = str(config.inference_input_file), str(config.inference_output_file)
    work = hashlib.sha256(config.to_json(**trained.contents).encode("utf-8")).hexdigest()
    lines = translate_file(model, *files, ranks, config.inference_list, work)
    from_root(ranks, lambda: _tell(settings, model, ",".join(trained.paths), lines))


class Trained(NamedTuple):
    """What translates.

    Attributes:
        weights: of the checkpoints.
        vocabularies: they were trained with.
        paths: of the checkpoints.
        contents: what tells weights, vocabularies and shortlist from others, by name.
    """

    weights: TrainedWeights
    vocabularies: inputs.Vocabularies
    paths: list[str]
    contents: dict[str, Any]


def load(settings: RunSettings, saved: Mapping[str, Any], ranks: Ranks, untouched: inputs.Untouched) -> Trained:
    """What the options ask to translate with, checked to be the same on all ranks.

    Collective: every rank calls.

    Args:
        settings: of the run.
        saved: the contents of the `hparams` file.
        ranks: who translates.
        untouched: in such a block, graphs are built as they are.

    Raises:
        AgreedError: on every rank: a file is missing, damaged, of other options, or another one on some rank.
    """
    config = settings.config
    paths = from_root(ranks, lambda: _checkpoints(config))  # a training may be writing others
    with together(ranks):
        vocabularies = inputs.read_vocabularies(config, saved)
        checksums = [checkpoint.checksum(path) for path in paths]
    inputs.check_same_vocabularies(ranks, config, vocabularies)
    weights_of = (
        f"the weights of {','.join(paths)} are not the same on all ranks: copy the checkpoints of rank 0 to all"
    )
    check_equal(ranks, zlib.crc32("".join(checksums).encode()), weights_of)
    shortlist = inputs.check_same_shortlist(ranks, config)
    with together(ranks), untouched():
        weights = _weights(settings, saved, vocabularies, paths)
    contents = inputs.vocabulary_record(vocabularies)
    contents |= {"checkpoint": ",".join(checksums), "shortlist_crc32": shortlist}
    return Trained(weights, vocabularies, paths, contents)


def _checkpoints(config: Config) -> list[str]:
    """The checkpoints to translate with: those of --ckpt, or the latest in out_dir.

    Raises:
        InputError: one is missing, or they are not of one kind of model.
    """
    paths = [path.strip() for path in config.ckpt.split(",")] if config.ckpt else []
    if not all(paths):
        raise InputError(f"--ckpt={config.ckpt} names nothing between two commas: give checkpoints, as a,b,c")
    latest = None if paths else checkpoint.latest(str(config.out_dir))
    paths += [latest] if latest else []
    if not paths:
        checkpoint.check_model("", str(config.out_dir))
        raise InputError(f"--out_dir={config.out_dir} has no checkpoint: train first, or give --ckpt")
    for path in paths:
        checkpoint.check_exists(path)
    _check_one_kind(paths)
    return paths


def _weights(
    settings: RunSettings, saved: Mapping[str, Any], vocabularies: inputs.Vocabularies, paths: Sequence[str]
) -> TrainedWeights:
    """The weights of a checkpoint, or of several for an ensemble.

    Raises:
        InputError: a checkpoint is damaged, or of another shape than the options say.
    """
    shape = derived_settings.architecture(settings.config, vocabularies, saved)
    running = settings.session, settings.gpus
    if len(paths) == 1:
        weights = TrainedWeights(shape, *running)
        checkpoint.restore(weights.session, weights.saver, paths[0])
        return weights
    ensemble = EnsembleWeights(len(paths), shape, *running)
    for scope, path in zip(ensemble.scopes, paths, strict=True):
        checkpoint.restore_below(ensemble.session, scope, path)
    return ensemble


def _check_one_kind(paths: Sequence[str]) -> None:
    """Checks, where the `hparams` of checkpoints tell, that they are of one kind of model and have the same words."""
    records = {}
    for path in paths:
        hparams = os.path.join(os.path.dirname(path), HPARAMS)
        if os.path.isfile(hparams):
            records[path] = read_saved(hparams)
    names = ["src_vocab_sha256", "tgt_vocab_sha256"]
    for group in (DataOptions, ModelOptions):  # what else is fixed is no matter of a model's shape
        names += [name for name, field in options_of(group).items() if field.metadata["fixed"]]
    alone = [path for path in paths if path not in records]
    if alone and len(paths) > 1:
        raise InputError(
            f"--ckpt: beside {alone[0]} there is no {HPARAMS}, so that nothing tells whether it was trained with the "
            "same words as the others: copy there that of the out_dir it comes from"
        )
    first = next(iter(records), "")
    for path, record in records.items():
        for name in (one for one in names if one in record and one in records[first]):
            if record[name] != records[first][name]:
                if name.endswith("_vocab_sha256"):
                    raise InputError(
                        f"--ckpt: {path} was trained with another vocabulary than {first} (see {name} in the hparams "
                        "beside them); models that translate together need the same words in one order: leave one out"
                    )
                raise InputError(
                    f"--ckpt: {name} is {records[first][name]!r} in the hparams of {first} and {record[name]!r} in "
                    f"those of {path}; models that translate together need one shape and one vocabulary: leave one out"
                )


def _tell_unknown(config: Config, vocabularies: inputs.Vocabularies) -> None:
    """On one rank. Raises InputError if the text to be translated is not one for these vocabularies."""
    for line in inputs.unknown_in_input(config, vocabularies[0]):
        print(f"# {line}", flush=True)


def _tell(settings: RunSettings, model: TranslationModel, path: str, lines: int) -> None:
    """Pictures and scores, and a line that says what was done. On one rank."""
    config = settings.config
    files = str(config.inference_input_file), str(config.inference_output_file)
    if config.inference_list is not None:
        for picture in draw_attention(model, *files, config.inference_list):
            print(f"# {picture}", flush=True)
    if config.inference_ref_file:
        picked = None if config.inference_list is None else parse_list(config.inference_list)
        scores = score_files(
            files[1],
            config.inference_ref_file,
            config.subword_option,
            config.metric_names,
            translations_per_input=settings.search.translations,
            picked=picked,
        )
        print("\n".join(scores.lines()), flush=True)
    print(f"# {lines} lines translated by {path} into {config.inference_output_file}", flush=True)
