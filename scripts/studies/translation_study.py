"""Translation study: shared code for studies on Multi30k: texts, trainings with different flags, and their figures."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # modules that all scripts share

from mpi_jobs import ROOT, environment, finish, mpirun  # noqa: E402

sys.path.insert(0, str(ROOT))
SIDES = ("en", "de")
FAMILIES = {
    "lstm": ["--encoder_type=bi", "--attention=scaled_luong", "--num_layers=2", "--dropout=0.3"],
    "transformer": ["--model_family=transformer", "--num_heads=4", "--num_layers=4", "--dropout=0.3", "--norm=pre"],
    "convs2s": ["--model_family=convs2s", "--num_layers=4", "--dropout=0.3"],
}
TEXTS = {"train.tok": "train", "val.tok": "dev", "test_2016_flickr.tok": "test"}
PROGRAM = ("-m", "nmt.nmt")
Figures = dict[str, float]


def parser(description: str, ranks: int, epochs: int, names: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that all studies have.

    Args:
      description: description of the study.
      ranks: default number of ranks.
      epochs: default number of epochs.
      names: names of the study's trainings.
    """
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data", type=Path, required=True, help="folder of Multi30k")
    made.add_argument("--out", type=Path, help="folder for models and logs; trainings finished there are not repeated")
    made.add_argument("--family", choices=list(FAMILIES), default="lstm", help="model family")
    made.add_argument("--ranks", type=int, default=ranks)
    made.add_argument("--epochs", type=int, default=epochs)
    made.add_argument("--steps", type=int, help="number of steps, instead of epochs")
    made.add_argument("--batch", type=int, default=32, help="sentences a rank")
    made.add_argument("--units", type=int, default=256)
    made.add_argument("--learning_rate", type=float, default=0.005)
    made.add_argument("--sentences", type=int, help="train only on the first sentences")
    made.add_argument("--bpe", type=int, default=6000)
    made.add_argument("--seed", type=int, default=1, help="seed of weights, batches and dropout")
    made.add_argument("--only", nargs="+", choices=list(names), help="trainings to run")
    made.add_argument("--json", type=Path, help="also write the numbers to this file")
    return made


def prepare(options: argparse.Namespace, folder: Path, *flags: str) -> int:
    """Segment the texts; ``flags`` are further flags of ``nmt.prepare``.

    Returns:
      The number of steps of a training: --steps, or computed from --epochs.
    """
    texts, data = folder / "text", folder / "data"
    texts.mkdir(parents=True, exist_ok=True)
    pairs = 0
    for source, name in TEXTS.items():
        for side in SIDES:
            lines = (options.data / f"{source}.{side}").read_text().splitlines(keepends=True)
            if name == "train":
                lines = lines[: options.sentences]
                pairs = len(lines)
            (texts / f"{name}.{side}").write_text("".join(lines))
    command = [
        sys.executable, "-m", "nmt.prepare", f"--train_prefix={texts}/train", "--src=en", "--tgt=de",
        f"--out_dir={data}", f"--apply={texts}/dev,{texts}/test", f"--bpe={options.bpe}", *flags,
    ]  # fmt: skip
    if not (data / "vocab.de").exists():
        subprocess.run(command, env=environment(), check=True)
    return int(options.steps or options.epochs * -(-pairs // (options.ranks * options.batch)))


def train(
    name: str,
    flags: Sequence[str],
    options: argparse.Namespace,
    folder: Path,
    steps: int,
    program: Sequence[str] = PROGRAM,
    ranks: int | None = None,
    may_diverge: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Figures:
    """Run one training, unless its log says that it is finished.

    Args:
      name: name of the training.
      flags: flags that differ from the other trainings; they override the flags before them.
      options: options of the study.
      folder: folder of the study.
      steps: total number of steps.
      program: arguments of Python for the program that trains.
      ranks: number of ranks; None for the study's.
      may_diverge: whether it may end early with a message of divergence; its BLEU figures are then 0.
      variables: further environment variables.

    Returns:
      ``final`` and ``best`` BLEU on ``dev`` and ``test``, and ``words/s`` of all ranks.
    """
    log = folder / f"{name}.log"
    own = [*training_flags(name, options, folder, steps), *flags]
    command = [mpirun(), "-n", str(ranks or options.ranks), sys.executable, *program, *own]
    if not (log.exists() and "# Final, " in log.read_text()):
        done = finish(command, environment(**variables))
        log.write_text(done.stdout + done.stderr)
        if done.returncode and not (may_diverge and "training diverged" in done.stderr):
            sys.exit(f"{Path(sys.argv[0]).name}: {name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return figures(log.read_text())


def training_flags(name: str, options: argparse.Namespace, folder: Path, steps: int) -> list[str]:
    """Return the flags of a training with this name; the study's own flags come after them."""
    data = folder / "data"
    often = -(-steps // 40)  # perplexities come at each tenth one: together with translations, blocks end once for both
    return [
        "--src=en", "--tgt=de", f"--train_prefix={data}/train", f"--dev_prefix={data}/dev",
        f"--test_prefix={data}/test", f"--vocab_prefix={data}/vocab", f"--out_dir={folder}/{name}",
        *FAMILIES[options.family], f"--num_units={options.units}",
        "--optimizer=adam", f"--learning_rate={options.learning_rate}", "--warmup_steps=300", "--decay_scheme=luong5",
        f"--batch_size={options.batch}", f"--num_train_steps={steps}", "--noevaluate_epochs",
        f"--steps_per_external_eval={10 * often}", f"--steps_per_stats={often}",
        "--subword_option=bpe", "--beam_width=5", "--length_penalty_weight=1.0", f"--random_seed={options.seed}",
        "--eval_mode=shared",
    ]  # fmt: skip


def figures(text: str) -> Figures:
    """Return the figures in a log."""
    found: Figures = {}
    for label, start in (("final", "# Final, "), ("best", "# Best bleu, ")):
        line = next((one for one in text.splitlines() if one.startswith(start)), "")
        for name in ("dev", "test"):
            score = re.search(rf"{name} bleu ([\d.]+)", line)
            found[f"{label} {name} bleu"] = float(score[1]) if score else 0.0
    speeds = [float(one) for one in re.findall(r"step-time [\d.]+s wps ([\d.]+)K", text)]
    found["words/s"] = 1000 * statistics.median(speeds[1:] or speeds or [0.0])
    return found


def write(options: argparse.Namespace, steps: int, found: dict[str, Figures]) -> None:
    """Write the file of --json, if the option is given."""
    if options.json:
        given: dict[str, Any] = {n: str(v) if isinstance(v, Path) else v for n, v in vars(options).items()}
        options.json.write_text(json.dumps({"options": given, "steps": steps, "results": found}, indent=2) + "\n")
