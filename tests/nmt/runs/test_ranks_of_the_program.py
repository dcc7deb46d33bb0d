"""The program under mpirun trains as one process with the whole batch, and prints one message for an error."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import latest
from nmt.nmt import main
from tests.launch import Finished, mpirun
from tests.nmt.runs.test_program import values


def program(size: int, arguments: list[str]) -> Finished:
    """Run the program on `size` ranks."""
    return mpirun(size, ["-m", "nmt.nmt", *arguments], timeout_seconds=300)


@pytest.mark.parametrize(
    ("optimizer", "sizes"),
    [
        pytest.param("sgd", (2,), marks=pytest.mark.long("cases_nmt compares steps with those of one process")),
        pytest.param("sgd", (4,), marks=pytest.mark.long("two ranks")),
        pytest.param("adam", (2,), marks=pytest.mark.long("cases_nmt compares Adam's steps")),
    ],
)
def test_ranks_do_what_one_process_does(toy: Any, optimizer: str, sizes: tuple[int, ...]) -> None:
    # Large initial weights: Adam amplifies the rounding errors of tiny gradients.
    flags = toy.flags("--dropout=0", "--init_weight=0.8", f"--optimizer={optimizer}", "--learning_rate=0.1")
    trained = {}
    for size in (1, *sizes):
        out = toy.directory / f"ranks{size}"
        more = [f"--out_dir={out}", f"--batch_size={16 // size}"]
        if size == 1:
            assert main([*flags, *more]) == 0, size
        else:
            done = program(size, [*flags, *more])
            assert done.code == 0, done.errors
            assert f"# ranks {size} x batch {16 // size} = global batch 16 sentences" in done.output, size
            assert done.output.count("# Final, step 6") == 1, size
            assert len(list(out.glob("log_*"))) == len(list((out / "train_log").iterdir())) == 1, size
        trained[size] = values(str(latest(out)))
        start = values(str(out / "translate.ckpt-0"))
        for name, value in trained[1].items():
            tolerance = 1e-5 * max(np.abs(value).max(), 1e-30)
            assert np.abs(trained[size][name].astype(np.float64) - value).max() <= tolerance, (size, name)
            assert not np.array_equal(start[name], value), name


def test_one_message_and_an_exit_code(toy: Any) -> None:
    (toy.directory / "train.de").write_text("A\n" * 36)
    done = program(2, toy.flags())
    assert done.code != 0
    told = [line for line in done.errors.splitlines() if line.startswith("nmt: ")]
    assert len(told) == 1
    assert "37" in told[0]
    assert "36" in told[0]
    assert "Traceback" not in done.errors
    assert not (toy.directory / "out").exists()


@pytest.mark.long("two machines' folders; a run that was stopped and goes on reads rank 0's, too")
def test_checkpoints_need_be_seen_by_rank_0_only(toy: Any) -> None:
    """Two ranks continue from the checkpoint of one process; rank 1 gets its variables from rank 0."""
    flags = toy.flags("--dropout=0")
    assert main([*flags, "--num_train_steps=3", "--batch_size=16"]) == 0
    done = program(2, [*flags, "--batch_size=8"])
    assert done.code == 0, done.errors
    assert "continuing after step 3" in done.output
    straight = toy.directory / "straight"
    assert main([*flags, f"--out_dir={straight}", "--batch_size=16"]) == 0
    continued = values(str(latest(toy.directory / "out")))
    for name, value in values(str(latest(straight))).items():
        np.testing.assert_allclose(continued[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert tf.train.latest_checkpoint(toy.directory / "out").endswith("translate.ckpt-6")


def test_ranks_translate_and_another_number_of_ranks_goes_on(toy: Any) -> None:
    assert main(toy.flags("--num_train_steps=1")) == 0
    text, out = toy.directory / "dev.en", toy.directory / "out"
    done = program(
        2, [f"--out_dir={out}", f"--inference_input_file={text}", f"--inference_output_file={toy.directory}/x"]
    )
    assert done.code == 0, done.errors
    assert len((toy.directory / "x").read_text().splitlines()) == len(text.read_text().splitlines())
    done = program(2, toy.flags("--learning_rate_scaling=sqrt", "--num_train_steps=2"))
    assert done.code == 0, done.errors
    assert "# 1 rank(s) until step 1, 2 from here on: global batch size changed since step 1" in done.output
    assert "learning rate 1.41421" in done.output


@pytest.mark.long("two programs on two ranks")
def test_ranks_that_see_other_files_do_not_translate_together(toy: Any) -> None:
    """Each rank has its own folder, as on two machines, and the weights or the shortlist of one rank differ."""
    assert main(toy.flags("--num_train_steps=2")) == 0
    for rank in (0, 1):
        shutil.copytree(toy.directory, toy.directory / f"rank{rank}", ignore=shutil.ignore_patterns("rank*"))
        (toy.directory / f"rank{rank}" / "words").write_text(f"</s> {'AB'[rank]}\n")
    older, newer = (toy.directory / "out" / f"translate.ckpt-{step}" for step in (0, 2))
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(f"{older}{suffix}", toy.directory / "rank1" / "out" / f"{newer.name}{suffix}")
    translate = """
import os, sys, tfdist
from nmt.nmt import main
os.chdir(os.path.join(sys.argv[1], f"rank{tfdist.rank()}"))
infer = ["--inference_input_file=dev.en", "--inference_output_file=found"]
codes = [main([*infer, *more]) for more in (["--out_dir=out"], ["--ckpt=out/translate.ckpt-0", "--shortlist=words"])]
prefixes = [f"--{name}_prefix={name}" for name in ("train", "dev", "vocab")]
codes.append(main(["--src=en", "--tgt=de", *prefixes, "--out_dir=new", "--eval_mode=shared", "--shortlist=words"]))
assert codes == [1, 1, 1] and not os.path.exists("found") and not os.path.exists("new/hparams"), codes
"""
    done = mpirun(2, ["-c", translate, str(toy.directory)], timeout_seconds=300)
    assert done.code == 0, done.errors
    weights, words, evaluated = (line for line in done.errors.splitlines() if line.startswith("nmt: "))
    assert "the weights of out/translate.ckpt-2 are not the same on all ranks" in weights
    assert "words is not the same on all ranks" in words and words == evaluated
    assert "rank 1 differs from rank 0" in weights and "rank 1 differs from rank 0" in words
