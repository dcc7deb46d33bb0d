"""Figure numbers: each function computes or measures the numbers of one figure of scripts/studies/figures, for JSON.

A figure's numbers are {"curves": {name: [[x, y], ...]}, ...}, with further keys that its drawing function needs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "bench")]

from mpi_jobs import PHRASEBOOK, ROOT, environment, finish, mpirun  # noqa: E402
from scaling_model import (  # noqa: E402
    ARTICLE,
    ARTICLE_BYTES,
    ARTICLE_FITTED,
    ARTICLE_MS,
    Cluster,
    fitted,
    ring_bytes,
)

sys.path.insert(0, str(ROOT))
Numbers = dict[str, Any]

ARTICLE_WORDS = {4: 51.0, 16: 160.0}  # IBM's article: thousand words a second by GPUs
_STEPS = 300  # steps of each training of `divergence`
_RATE, _TIMES = 0.002, 10


def rate() -> Numbers:
    """Return the learning rate by step, for nmt's schedules."""
    import tensorflow as tf

    from nmt.train.schedule import Schedule

    schedules = {
        "noam, width 512, 2,000 steps": Schedule(1.0, 20_000, 2000, decay_scheme="noam", num_units=512),
        "inverse_sqrt from 0.0007, 4,000 steps": Schedule(7e-4, 20_000, 4000, decay_scheme="inverse_sqrt"),
        "luong5 from 0.0007, linear warm-up": Schedule(7e-4, 20_000, 2000, "linear", decay_scheme="luong5"),
        "luong234 from 0.0007, t2t warm-up": Schedule(7e-4, 20_000, 2000, "t2t", decay_scheme="luong234"),
    }
    steps = range(0, 20_001, 400)
    return {"curves": {name: [[n, float(one.rate(tf.constant(n)))] for n in steps] for name, one in schedules.items()}}


def divergence() -> Numbers:
    """Train at a good learning rate and at ten times that rate; return the perplexities and the guard's step."""
    with tempfile.TemporaryDirectory() as folder:
        text, data = Path(folder, "text"), Path(folder, "data")
        _run(str(PHRASEBOOK), f"--out_dir={text}")
        _run(
            "-m",
            "nmt.prepare",
            f"--train_prefix={text}/train",
            "--src=en",
            "--tgt=de",
            f"--out_dir={data}",
            "--bpe=500",
        )
        common = [
            "--src=en", "--tgt=de", f"--train_prefix={data}/train", f"--dev_prefix={text}/dev",
            f"--vocab_prefix={data}/vocab", "--subword_option=bpe", "--model_family=transformer", "--num_units=128",
            "--num_heads=4", "--num_layers=3", "--feed_forward_size=256", "--optimizer=adam", "--warmup_steps=100",
            "--warmup_scheme=linear", "--batch_size=32", f"--num_train_steps={_STEPS}", "--steps_per_stats=5",
            f"--steps_per_external_eval={_STEPS}", "--noevaluate_epochs", "--random_seed=1",
        ]  # fmt: skip
        curves = {}
        for name, times in (("the rate", 1), ("ten times the rate", _TIMES)):
            out = Path(folder, f"times{times}")
            _ranks(*common, f"--learning_rate={_RATE * times}", f"--out_dir={out}")
            lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
            curves[name] = [[one["step"], one["train_ppl"]] for one in lines if "train_ppl" in one]
        guarded = _ranks(
            *common, f"--learning_rate={_RATE * _TIMES}", f"--out_dir={folder}/guarded", "--divergence=stop", fails=True
        )
        found = re.search(r"training diverged.*?(?:up to|in) step (\d+)", guarded.stderr, re.DOTALL)
        if not found:
            sys.exit(f"figures: ten times the rate was not stopped:\n{guarded.stderr[-2000:]}")
        return {"curves": curves, "stopped_at_step": int(found[1]), "rate": _RATE}


def gpus() -> Numbers:
    """Return words a second by GPUs: the article's points, and the model fitted to three of the article's steps."""
    words = ARTICLE_WORDS[16] * ARTICLE_MS[16] / 16  # words of a rank's step
    model = [[n, n * words / step] for n, step in _milliseconds().items()]
    return {"curves": {"model": model}, "published": [[n, one] for n, one in ARTICLE_WORDS.items()]}


def milliseconds() -> Numbers:
    """Return milliseconds a step by ranks: the article's points, and the model."""
    return {
        "curves": {"model": [[n, step] for n, step in _milliseconds().items()]},
        "published": [[n, one] for n, one in ARTICLE_MS.items()],
        "fitted": ARTICLE_FITTED,
    }


def strong_scaling(sentences: int = 128, rounds: int = 3, steps: int = 6) -> Numbers:
    """Measure a Transformer's step at one global batch on 1, 2 and 4 ranks, and predict it for up to 256 nodes.

    The prediction takes the computing time of a rank's share of the batch from single processes without an exchange.
    Links have 100 Gbit/s as in the article. The predicted model has one table, the measured model has three. The
    table's gradient is dense, or slices that all ranks gather and add up.
    """
    from nmt_step import SIZES, TIME

    size = SIZES["transformer-small"]
    alone, measured = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2, 4):
            report = Path(folder, f"{ranks}.json")
            command = [
                sys.executable, str(SCRIPTS / "bench/train_nmt"), "--size=transformer-small", f"--ranks={ranks}",
                f"--batch={sentences // ranks}", f"--rounds={rounds}", f"--steps={steps}", "--oversubscribe",
                f"--json={report}",
            ]  # fmt: skip
            subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
            words = json.loads(report.read_text())["words_per_second"]
            whole = 2 * TIME * sentences
            alone[ranks] = whole / ranks / words["one rank alone"]
            measured[ranks] = whole / words.get("ranks", words["one rank alone"])
    fixed, a_sentence = _line([[sentences / n, seconds] for n, seconds in alone.items()])
    table = size.target_words * size.units * 4.0
    others = 4.0 * size.layers * (12 * size.units**2 + 4 * size.units * size.inner)
    cluster = dataclasses.replace(_fitted(), ranks_per_node=1)

    def compute(n: int) -> float:
        return fixed + a_sentence * sentences / n

    def dense(n: int) -> float:
        return compute(n) + cluster.all_reduce(table + others, n)

    def gathered(n: int) -> float:
        rows = table + 2 * TIME * sentences / n * size.units * 4
        return compute(n) + cluster.all_reduce(others, n) + cluster.all_gather(rows, n)

    nodes = [2**k for k in range(9)]
    ways: dict[str, Callable[[int], float]] = {"dense, predicted": dense, "gathered, predicted": gathered}
    return {
        "curves": {name: [[n, 1e3 * way(n)] for n in nodes] for name, way in ways.items()},
        "measured": [[n, 1e3 * seconds] for n, seconds in measured.items()],
        "ideal": [[n, 1e3 * compute(1) / n] for n in nodes],
        "sentences": sentences,
        "cores": len(os.sched_getaffinity(0)),
        "bytes": {"table": table, "others": others, "ring of 256": ring_bytes(table + others, 256)},
    }


def ladder(data: str, epochs: int = 2) -> Numbers:
    """Return the Transformer's words a second, rung by rung: scripts/studies/speed_ladder, 16 accumulated steps."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "ladder.json")
        command = [
            sys.executable, str(SCRIPTS / "studies" / "speed_ladder"), f"--data={data}", f"--epochs={epochs}",
            "--family=transformer", "--accumulate=16", "--units=128", f"--json={report}",
        ]  # fmt: skip
        subprocess.run(command, check=True, env=environment())
        results = json.loads(report.read_text())["results"]
    return {"rungs": {name: one["words/s"] for name, one in results.items()}, "results": results}


def _fitted() -> Cluster:
    return fitted(ARTICLE, ARTICLE_BYTES, {n: ARTICLE_MS[n] / 1e3 for n in ARTICLE_FITTED})


def _milliseconds() -> dict[int, float]:
    """Return the model's milliseconds of a step, by GPUs."""
    cluster = _fitted()
    return {n: ARTICLE_MS[1] + 1e3 * cluster.all_reduce(ARTICLE_BYTES, n) for n in range(1, 17)}


def _line(points: list[list[float]]) -> tuple[float, float]:
    """Fit a straight line by least squares; return its value at 0, or 0 if that is negative, and its slope."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return max(0.0, mean_y - slope * mean_x), slope


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, env=environment(), stdout=subprocess.DEVNULL)


def _ranks(*flags: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    done = finish([mpirun(), "-n", "2", sys.executable, "-m", "nmt.nmt", *flags], environment(OMP_NUM_THREADS="1"))
    if done.returncode and not fails:
        sys.exit(f"figures: a training failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done
