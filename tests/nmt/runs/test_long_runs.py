"""Runs on several ranks that are stopped, killed and continued."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.checkpoints.checkpoint import latest, step_of
from nmt.nmt import main
from nmt.prepare import prepare
from tests.launch import TFDIST_RUN, run
from tests.nmt.runs.test_program import values
from tests.nmt.runs.test_ranks_of_the_program import program

# A rank sends itself a signal in the middle of the run, another signal in each attempt. It does not signal the
# launcher, because launchers differ in their reaction to signals.
SIGNALLED = """
import os, signal, sys
import tfdist
from nmt.nmt import main
from nmt.train.prefetch import Prefetcher
batch = Prefetcher.batch
number, when = [(signal.SIGKILL, 16), (signal.SIGTERM, 18)][int(os.environ["TFDIST_RESTARTS"])]
def signalled(self, step, part):
    if step == when and part == self.parts - 1 and tfdist.rank() == tfdist.size() - 1:
        os.kill(os.getpid(), number)
    return batch(self, step, part)
Prefetcher.batch = signalled
sys.exit(main(sys.argv[1:]))
"""


def in_subwords(directory: Path) -> list[str]:
    """Make the words longer, cut all text into subwords, and return the flags for training."""
    for path in (directory / f"{name}.{side}" for name in ("train", "dev") for side in ("en", "de")):
        path.write_text(
            re.sub(r"(\w)", lambda letter: f"{letter[0].lower() * 3}x{letter[0].lower()}", path.read_text())
        )
    data = directory / "data"
    prepare(
        f"{directory}/train", "en", "de", data, apply=[f"{directory}/dev"], bpe=30, share_vocab=True, all_subwords=True
    )
    prefixes = [f"--{kind}_prefix={data}/{kind}" for kind in ("train", "dev", "vocab")]
    return [*prefixes, f"--bpe_codes={data}/bpe.codes"]


# (The run is asked to stop after step 19. There a block ends that began after the evaluation of step 14.)
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(
            [
                "--accumulate_steps=2",
                "--precision=float16",
                "--loss_scale=backoff",
                "--loss_normalization=words",
                "--weight_decay=0.5",
                "--decay_scheme=plateau",
                "--plateau_patience=1",
                "--dropout_mask=sentence",
                "--r_drop=1",
            ],
            id="accumulated",
            marks=pytest.mark.long("cases_nmt and cases_loss_scale have these, and it takes twice as long"),
        ),
        pytest.param(
            [
                *("--label_smoothing=0.1", "--tie_embeddings=decoder", "--embedding_size=6", "--output_dropout=0.1"),
                *("--src_word_dropout=0.1", "--tgt_word_dropout=0.1", "--adam_beta2=0.98"),
                *("--avg_ckpts", "--num_keep_ckpts=2"),
            ],
            id="gradients",
        ),
        pytest.param(
            [
                "--pool_batches=3",
                "--num_buckets=1",
                "--batch_size=4",
                "--decay_scheme=inverse_sqrt",
                "--warmup_steps=5",
            ],
            id="pools",
            marks=pytest.mark.long("tests/nmt/text and tests/nmt/train have what is planned, and the rates"),
        ),
        pytest.param(
            [
                *("--batch_tokens=30", "--decay_scheme=noam", "--warmup_steps=10", "--learning_rate=1"),
                *("--share_vocab", "--subword_option=bpe", "--src_bpe_dropout=0.3", "--tgt_bpe_dropout=0.3"),
            ],
            id="drawn",
            marks=pytest.mark.long("tests/nmt/text and tests/nmt/train have what is drawn, and the rates"),
        ),
        pytest.param(
            ["--sync=bmuf:steps=5:state=average:nesterov=1"],
            id="blocks",
            marks=pytest.mark.long("cases_local_sgd goes on from a checkpoint, cases_nmt saves at a block's end"),
        ),
        pytest.param(
            [
                *("--sync=diloco:steps=4:fragments=2:delay=2", "--optimizer=sgd"),
                *("TFDIST_NODE_SIZE=1", "TFDIST_ENGINE=mpi", "--learning_rate=0.5"),
            ],
            id="streamed",
            marks=pytest.mark.long("cases_streamed_blocks goes on from a checkpoint"),
        ),
        *(
            pytest.param(
                ["--attention=", f"--model_family={family}", "--num_units=16", "--avg_ckpts", *more],
                id=family,
                marks=pytest.mark.long("what is kept and drawn does not depend on the family"),
            )
            for family, more in (("transformer", ["--num_heads=2", "--attention_dropout=0.1"]), ("convs2s", []))
        ),
        pytest.param(
            ["TFDIST_COMPRESSION=int8", "TFDIST_NODE_SIZE=1", "TFDIST_ENGINE=mpi", "--num_units=64"],
            id="int8",
            marks=pytest.mark.long("cases_int8 goes on from a checkpoint"),
        ),
    ],
)
def test_a_run_that_was_killed_and_stopped_goes_on_as_if_it_had_not(
    toy: Any, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed in a step, restarted by tfdist-run, asked to stop, and continued to the end."""
    for setting in (way for way in ways if way.startswith("TFDIST_")):
        monkeypatch.setenv(*setting.split("="))
    if "--subword_option=bpe" in ways:
        ways = [*ways, *in_subwords(toy.directory)]
    flags = toy.flags(
        "--num_train_steps=40", "--num_intra_threads=1", "--num_inter_threads=1", "--noevaluate_epochs",
        "--steps_per_external_eval=14", "--optimizer=adam", "--learning_rate=0.01",
        *(way for way in ways if way.startswith("--")),
    )  # fmt: skip
    if any(way.startswith("--batch_tokens") for way in ways):
        flags.remove("--batch_size=8")
    straight, out = toy.directory / "straight", toy.directory / "out"
    assert program(2, [*flags, f"--out_dir={straight}"]).code == 0

    script = toy.directory / "signalled.py"
    # Writing a checkpoint sums the ranks' int8 rounding errors, or ends the blocks of fragments, which changes the next
    # step. So the run is asked to stop at a step at which the uninterrupted run also writes a checkpoint.
    stops = 20 if "TFDIST_COMPRESSION=int8" in ways else 28 if any("delay=2" in way for way in ways) else 19
    script.write_text(
        SIGNALLED.replace("(signal.SIGTERM, 18)", f"(signal.SIGTERM, {stops - (3 if stops == 28 else 1)})")
    )
    command = [sys.executable, str(TFDIST_RUN), "-n", "2", "--max-restarts", "1", "--no-prefix"]
    done = run([*command, "python", str(script), *flags], timeout_seconds=300)
    assert done.code == 0, done.errors
    assert re.search(r"attempt 1 of 2 ended with exit code [1-9].*\n.*attempt 2 of 2: 2 ranks", done.errors)
    assert "continuing after step 14" in done.output
    assert "run.lock was left by process" in done.output
    assert f"# Asked to stop: saved after step {stops}; the same command continues from there." in done.output
    assert step_of(str(latest(out))) == stops

    done = program(2, flags)
    assert done.code == 0 and f"continuing after step {stops}" in done.output, done.errors
    assert "run.lock was left by process" not in done.output
    assert not (out / "run.lock").exists()
    continued = values(str(latest(out)))
    for variable, value in values(str(latest(straight))).items():
        np.testing.assert_array_equal(continued[variable], value, err_msg=variable)


def test_early_stopping_ends_with_a_full_evaluation(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = toy.flags("--learning_rate=0.000001", "--num_train_steps=60", "--steps_per_external_eval=3")
    assert main([*flags, "--early_stopping_patience=2", "--noevaluate_epochs"]) == 0
    said = capsys.readouterr().out
    assert "# Stopping early after step 6: the best score on dev is that of step 0." in said
    assert "# Final, step 6 " in said
