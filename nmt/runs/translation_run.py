"""A run that translates a file: the ranks share its lines, and rank 0 writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from nmt.core.errors import InputError
from nmt.core.ranks import Ranks, from_root, together
from nmt.keeping import checkpoint
from nmt.options import derived_settings
from nmt.options.config import Config
from nmt.options.option import make
from nmt.runs import inputs
from nmt.scoring.score import check_reference, score_files
from nmt.translate.translate_file import draw_attention, parse_list, translate_file
from nmt.translate.translation_model import SearchSettings, TranslationModel


def infer(config: Config, saved: Mapping[str, Any], ranks: Ranks, untouched: inputs.Untouched) -> None:
    """Translates the input file by the checkpoint asked for, or the latest in out_dir.

    Collective: every rank calls.

    Args:
        config: of the run.
        saved: the contents of the `hparams` file.
        ranks: who translates.
        untouched: in such a block, graphs are built as they are, without broadcasts of initial values.

    Raises:
        AgreedError: on every rank, for a user's mistake.
    """
    if config.inference_ref_file:  # before all the work
        files = str(config.inference_input_file), config.inference_ref_file
        from_root(ranks, lambda: check_reference(*files))
    with together(ranks):
        path = config.ckpt or checkpoint.latest(str(config.out_dir))
        if path is None:
            raise InputError(f"--out_dir={config.out_dir} has no checkpoint: train first, or give --ckpt")
        checkpoint.check_exists(path)
        vocabularies = inputs.read_vocabularies(config, saved)
        with untouched():
            model = TranslationModel(
                derived_settings.architecture(config, vocabularies, saved),
                *vocabularies,
                make(SearchSettings, config),
                derived_settings.session_settings(config),
                derived_settings.gpus(config),
            )
        checkpoint.restore(model.session, model.saver, path)
    notices = derived_settings.precision_notices(config, ranks)
    from_root(ranks, lambda: print("".join(f"# {notice}\n" for notice in notices), end="", flush=True))
    files = str(config.inference_input_file), str(config.inference_output_file)
    work = from_root(ranks, lambda: _work(config, path, vocabularies))
    lines = translate_file(model, *files, ranks, config.inference_list, work)
    from_root(ranks, lambda: _tell(config, model, path, lines))


def _work(config: Config, path: str, vocabularies: inputs.Vocabularies) -> str:
    """What tells this translation from one by another model or with other options."""
    options = config.to_json(**inputs.vocabulary_record(vocabularies), checkpoint=checkpoint.checksum(path))
    return hashlib.sha256(options.encode("utf-8")).hexdigest()


def _tell(config: Config, model: TranslationModel, path: str, lines: int) -> None:
    """Pictures and scores, and a line that says what was done. On one rank."""
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
            translations_per_input=make(SearchSettings, config).translations,
            picked=picked,
        )
        print("\n".join(scores.lines()), flush=True)
    print(f"# {lines} lines translated by {path} into {config.inference_output_file}", flush=True)
