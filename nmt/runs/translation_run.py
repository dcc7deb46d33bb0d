"""A run that translates a file: the ranks share its lines, and rank 0 writes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nmt.checkpoints import checkpoint
from nmt.core.errors import InputError
from nmt.core.ranks import Ranks, call_on_root, check_equal, together
from nmt.model.inference_model import TrainedWeights
from nmt.model.registry import architecture
from nmt.options.config import Config
from nmt.options.data_options import DataOptions
from nmt.options.hparams_file import HPARAMS, read_saved
from nmt.options.model_options import ModelOptions
from nmt.options.option import options_of
from nmt.runs import inputs
from nmt.scoring.finishing import Finishing
from nmt.scoring.score import score_files
from nmt.scoring.tokenisation import remarks
from nmt.search.ensemble import EnsembleWeights
from nmt.search.translate_file import draw_attention, parse_list, translate_file
from nmt.search.translation_model import TranslationModel
from nmt.text.lines import TextFile


def infer(config: Config, saved: Mapping[str, Any], ranks: Ranks) -> None:
    """Translate the input file with the given checkpoints, or the latest in out_dir.

    Collective: every rank calls.

    Args:
        config: options of the run.
        saved: contents of the `hparams` file.
        ranks: the ranks that translate.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
    """
    with together(ranks):
        finishing = inputs.finishing(config, ())
    if config.inference_ref_file:  # checked before the long work
        call_on_root(ranks, lambda: _check_reference(config, finishing))
    trained = load(config, saved, ranks)
    call_on_root(ranks, lambda: _tell_unknown(config, trained.vocabularies))
    model = searching(trained, config, ranks)
    files = str(config.inference_input_file), str(config.inference_output_file)
    lines = translate_file(model, *files, ranks, config.inference_list, finishing.text)
    call_on_root(ranks, lambda: _tell(config, model, finishing, ",".join(trained.paths), lines))


def _check_reference(config: Config, finishing: Finishing) -> None:
    """Raise InputError if the text to translate and its reference have different numbers of lines."""
    text = TextFile(str(config.inference_input_file))
    lines = finishing.references(str(config.inference_ref_file), is_prepared=False)
    if len(text) != len(lines):
        raise InputError(
            f"{text.path} has {len(text)} lines and its reference {config.inference_ref_file} has {len(lines)}; score "
            "translations with the reference of the text they translate"
        )


class Trained(NamedTuple):
    """A trained model, or several for an ensemble.

    Attributes:
        weights: weights of the checkpoints.
        vocabularies: vocabularies of the training.
        paths: paths of the checkpoints.
    """

    weights: TrainedWeights
    vocabularies: inputs.Vocabularies
    paths: list[str]


def load(config: Config, saved: Mapping[str, Any], ranks: Ranks) -> Trained:
    """Load the model that the options name, and check that it is the same on all ranks.

    Collective: every rank calls.

    Args:
        config: options of the run.
        saved: contents of the `hparams` file.
        ranks: the ranks that translate.

    Raises:
        CollectiveError: on every rank: a file is missing or damaged, does not fit the options, or differs there.
    """
    ranks.multiply_in(config.precision)
    paths = call_on_root(ranks, lambda: _checkpoints(config))  # rank 0 decides, as a training may be writing newer ones
    with together(ranks):
        vocabularies = inputs.read_vocabularies(config, saved)
        checksums = [checkpoint.checksum(path) for path in paths]
    inputs.check_same_vocabularies(ranks, config, vocabularies)
    weights_of = (
        f"the weights of {','.join(paths)} are not the same on all ranks: copy the checkpoints of rank 0 to all"
    )
    check_equal(ranks, zlib.crc32("".join(checksums).encode()), weights_of)
    inputs.check_same_shortlist(ranks, config)
    with together(ranks), ranks.untouched():
        weights = _weights(config, saved, vocabularies, paths)
    return Trained(weights, vocabularies, paths)


def open_model(config: Config, saved: Mapping[str, Any], ranks: Ranks) -> TranslationModel:
    """Load the model that the options name, and build its search; see `load`. Collective: every rank calls."""
    return searching(load(config, saved, ranks), config, ranks)


def searching(trained: Trained, config: Config, ranks: Ranks) -> TranslationModel:
    """Build the search of a loaded model, as the options ask. Collective: every rank calls."""
    with together(ranks), ranks.untouched():
        return TranslationModel(trained.weights, *trained.vocabularies, config)


def _checkpoints(config: Config) -> list[str]:
    """Return the paths of the checkpoints to translate with: those of --ckpt, or the latest in out_dir.

    Raises:
        InputError: a checkpoint is missing, or they have different architectures or vocabularies.
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
    config: Config, saved: Mapping[str, Any], vocabularies: inputs.Vocabularies, paths: Sequence[str]
) -> TrainedWeights:
    """Return the weights of a checkpoint, or of several checkpoints for an ensemble.

    Raises:
        InputError: a checkpoint is damaged, or does not fit the architecture of the options.
    """
    shape = architecture(config, vocabularies, saved)
    if len(paths) == 1:
        weights = TrainedWeights(shape, config)
        checkpoint.restore(weights.session, weights.saver, paths[0])
        return weights
    ensemble = EnsembleWeights(len(paths), shape, config)
    for scope, path in zip(ensemble.scopes, paths, strict=True):
        checkpoint.restore_below(ensemble.session, scope, path)
    return ensemble


def _check_one_kind(paths: Sequence[str]) -> None:
    """Check that the checkpoints with an `hparams` file have the same architecture and vocabularies."""
    records = {}
    for path in paths:
        hparams = os.path.join(os.path.dirname(path), HPARAMS)
        if os.path.isfile(hparams):
            records[path] = read_saved(hparams)
    names = ["src_vocab_sha256", "tgt_vocab_sha256"]
    for group in (DataOptions, ModelOptions):  # fixed options of other groups do not change the architecture
        names += [name for name, field in options_of(group).items() if field.metadata["fixed"]]
    alone = [path for path in paths if path not in records]
    if alone and len(paths) > 1:
        raise InputError(
            f"--ckpt: there is no {HPARAMS} in the directory of {alone[0]}, so its vocabulary cannot be checked. "
            "Copy the file from the out_dir of its training"
        )
    first = next(iter(records), "")
    for path, record in records.items():
        for name in (one for one in names if one in record and one in records[first]):
            if record[name] != records[first][name]:
                if name.endswith("_vocab_sha256"):
                    raise InputError(
                        f"--ckpt: {path} was trained with another vocabulary than {first} (see {name} in their "
                        "hparams). The models of an ensemble need the same words in the same order: leave one out"
                    )
                raise InputError(
                    f"--ckpt: {name} is {records[first][name]!r} in the hparams of {first} and {record[name]!r} in "
                    f"those of {path}. The models of an ensemble need the same architecture: leave one out"
                )


def _tell_unknown(config: Config, vocabularies: inputs.Vocabularies) -> None:
    """Print a warning if the text to translate has many unknown words. Raises InputError if they are too many."""
    for line in inputs.unknown_in_input(config, vocabularies[0]):
        print(f"# {line}", flush=True)


def _tell(config: Config, model: TranslationModel, finishing: Finishing, path: str, lines: int) -> None:
    """Draw attention pictures, print scores and a summary. Only one rank calls."""
    files = str(config.inference_input_file), str(config.inference_output_file)
    if config.inference_list is not None:
        for picture in draw_attention(model, *files, config.inference_list):
            print(f"# {picture}", flush=True)
    if config.inference_ref_file:
        picked = None if config.inference_list is None else parse_list(config.inference_list)
        language, preparation = str(config.tgt), finishing.preparation
        scores = score_files(
            files[1],
            str(config.inference_ref_file),
            finishing.references(str(config.inference_ref_file), is_prepared=False),
            config.metric_names,
            translations_per_input=config.translations,
            picked=picked,
            words=(lambda line: preparation.cased(preparation.words(line, language)))
            if preparation.recipe.raw
            else None,
            language=language,
        )
        print("\n".join(remarks(language) + scores.lines()), flush=True)
    print(f"# {lines} lines translated by {path} into {config.inference_output_file}", flush=True)
