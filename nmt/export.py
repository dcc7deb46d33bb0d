"""Exports a trained model as a SavedModel that maps strings to strings, for TensorFlow without this package.

    python -m nmt.export --model=OUT_DIR --export_dir=D [--beam_width=5] [--n_best=K]

The signature `serving_default` takes `lines`, string [batch]: prepared text, as of nmt.prepare. It returns
`translations`, string [batch, K], best first, with subwords joined; and with beam search their `scores`, float32
[batch, K]. The translations are those of nmt.nmt and nmt.translate. D/assets.extra has the record of how text is
prepared, for the client: scripts/examples/saved_model_client.py prepares raw text, and makes text of translations.
D must not exist; it appears when it is complete. A run whose search draws words is exported with greedy search, or with
beam search if --beam_width is given.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from nmt.core.errors import InputError, reason_of
from nmt.core.files import make_directory
from nmt.core.ranks import call_on_root
from nmt.core.scratch import scratch_folder
from nmt.options.config import Config
from nmt.options.option import option
from nmt.options.search_options import SearchOptions
from nmt.runs.program import run_on_ranks
from nmt.runs.tfdist_ranks import Processes
from nmt.runs.trained_model import find
from nmt.runs.translation_run import Trained, load
from nmt.search.string_model import string_translations
from nmt.text.preparation import copy_preparation

v1 = tf.compat.v1


@dataclass(frozen=True)
class ExportOptions(SearchOptions):
    """Command-line options of `nmt.export`."""

    title: ClassVar[str] = "output"

    export_dir: str | None = option(None, "New directory for the SavedModel.", required=True)

    def configured(self) -> tuple[Config, dict[str, Any]]:
        """Return the options of the model's run with these, and the contents of its `hparams` file.

        Raises:
            InputError: the directory exists, or the options do not fit the model.
        """
        if os.path.lexists(str(self.export_dir)):
            raise InputError(f"--export_dir={self.export_dir} exists, and nothing is overwritten: choose another name")
        run, _ = find(str(self.model), {"precision": self.precision})
        if run.search_mode == "sample":  # draws of an exported model could not be repeated
            run = dataclasses.replace(run, infer_mode="greedy")
        return find(str(self.model), self.search(run))


def export(options: ExportOptions, ranks: Processes) -> None:
    """Write the SavedModel.

    Collective: every rank calls, with equal options; rank 0 writes.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
    """
    config, saved = call_on_root(ranks, options.configured)
    trained = load(config, saved, ranks)
    call_on_root(ranks, functools.partial(_write, options, config, trained, ranks))


def _write(options: ExportOptions, config: Config, trained: Trained, ranks: Processes) -> None:
    target, session = Path(str(options.export_dir)), trained.weights.session
    with ranks.alone("export"), session.graph.as_default(), ranks.untouched():
        lines = v1.placeholder(tf.string, [None], "lines")
        texts, scores = string_translations(trained.weights.translator, trained.vocabularies, config, lines)
        outputs = {"translations": texts} | ({} if scores is None else {"scores": tf.cast(scores, tf.float32)})
        parent, scratch = make_directory(target.absolute().parent), target
        try:
            with scratch_folder(parent, f".nmt-export-{target.name}-") as scratch:
                builder = v1.saved_model.Builder(os.fspath(scratch / "model"))
                signature = v1.saved_model.predict_signature_def({"lines": lines}, outputs)
                builder.add_meta_graph_and_variables(
                    session, [tf.saved_model.SERVING], {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature},
                    main_op=v1.tables_initializer(),
                )  # fmt: skip
                builder.save()
                copy_preparation(config.vocab_prefix, scratch / "model" / "assets.extra")
                os.rename(scratch / "model", target)
        except (OSError, tf.errors.OpError) as error:
            reason = str(error.strerror if isinstance(error, OSError) else reason_of(error))
            reason = reason.replace(os.fspath(scratch), os.fspath(target))
            raise InputError(
                f"--export_dir={target} cannot be written ({reason}): choose another, where you may write and the disk "
                "has room"
            ) from error
    print(f"# {target}: the model of {','.join(trained.paths)}, {config.search_mode}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Run the command on this rank; return its exit code."""
    return run_on_ranks(export, ExportOptions, __doc__, argv, "export")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
