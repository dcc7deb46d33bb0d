"""--init_from and --freeze: a training begins with another run's weights, and leaves parts of them as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import latest
from nmt.checkpoints.transfer import Words, begin_with
from nmt.core.errors import InputError
from nmt.nmt import main
from nmt.text.vocabulary import read_vocabulary, write_vocabulary
from nmt.train.step import parts_of
from tests.nmt.runs.test_program import values

TABLES = ("embeddings/encoder/embedding_encoder", "embeddings/decoder/embedding_decoder")
OUTPUT = "dynamic_seq2seq/decoder/output_projection/kernel"


def tuned(toy: Any, *more: str) -> dict[str, np.ndarray]:
    """Train on from `out` in `tuned`, and return the first weights and the last."""
    flags = [f"--out_dir={toy.directory}/tuned", f"--init_from={toy.directory}/out", "--num_train_steps=3", *more]
    assert main(toy.flags("--optimizer=adam", "--learning_rate=0.01", *flags)) == 0
    return values(f"{toy.directory}/tuned/translate.ckpt-0")


def test_all_weights_are_kept_and_the_optimizer_is_new(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(toy.flags("--optimizer=adam", "--learning_rate=0.01")) == 0
    trained = values(str(latest(str(toy.directory / "out"))))
    first = tuned(toy)
    assert f"# starting with the weights of {toy.directory}/out/translate.ckpt-6" in capsys.readouterr().out
    for name, value in first.items():
        if "Adam" in name or "_power" in name or name == "global_step":
            assert not np.array_equal(value, trained[name]), name
        else:
            np.testing.assert_array_equal(value, trained[name], err_msg=name)
    again = values(str(latest(str(toy.directory / "tuned"))))
    assert int(again["global_step"]) == 3 and not np.array_equal(again[OUTPUT], trained[OUTPUT])
    said = toy.flags(f"--out_dir={toy.directory}/tuned", "--num_train_steps=4")  # continues without --init_from's run
    (toy.directory / "out").rename(toy.directory / "gone")
    assert main(said) == 0 and "starting with" not in capsys.readouterr().out


def test_rows_of_words_that_both_vocabularies_have(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Other words keep their initial values; the output layer's columns go with the target's words."""
    assert main(toy.flags("--random_seed=1")) == 0
    trained = values(str(latest(str(toy.directory / "out"))))
    old = {side: read_vocabulary(toy.directory / f"vocab.{side}").words for side in ("en", "de")}
    for side in ("en", "de"):
        write_vocabulary(toy.directory / f"new.{side}", ["new", *old[side][:4:-1], "other"])
    vocab = f"--vocab_prefix={toy.directory}/new"
    fresh = toy.flags(
        vocab, f"--out_dir={toy.directory}/fresh", "--num_train_steps=1", "--optimizer=adam", "--random_seed=1"
    )
    assert main(fresh) == 0
    unchanged = values(f"{toy.directory}/fresh/translate.ckpt-0")
    first = tuned(toy, vocab, "--random_seed=1")
    assert "# 8 of 10 source words have the weights of this model" in capsys.readouterr().out
    for side, name in zip(("en", "de", "de"), (*TABLES, OUTPUT), strict=True):
        new = read_vocabulary(toy.directory / f"new.{side}").words
        tables = [table if name in TABLES else table.T for table in (trained[name], first[name], unchanged[name])]
        assert len(tables[1]) == 10
        for number, word in enumerate(new):
            wanted = tables[0][old[side].index(word)] if word in old[side] else tables[2][number]
            np.testing.assert_array_equal(tables[1][number], wanted, err_msg=f"{name} {word}")


@pytest.mark.parametrize(
    "family",
    ["lstm", *(pytest.param(one, marks=pytest.mark.long("the LSTM's")) for one in ("transformer", "convs2s"))],
)
def test_frozen_parts_stay(toy: Any, family: str) -> None:
    """Every variable belongs to a part; those of frozen parts keep their values, and all others change."""
    frozen = ["source_embedding", "encoder"]
    own = ["--attention=", "--num_heads=2"] if family == "transformer" else ["--attention="] * (family == "convs2s")
    flags = [
        f"--model_family={family}",
        *own,
        f"--freeze={','.join(frozen)}",
        "--optimizer=adam",
        "--num_train_steps=3",
    ]
    assert main(toy.flags(*flags)) == 0
    out = str(toy.directory / "out")
    first, last = values(f"{out}/translate.ckpt-0"), values(str(latest(out)))
    weights = [name for name in first if name.startswith(("embeddings/", "dynamic_seq2seq/")) and "Adam" not in name]
    seen = set()
    for name in weights:
        parts = parts_of(name)
        assert len(parts) == 1, name
        seen |= parts
        assert np.array_equal(first[name], last[name]) == bool(parts & set(frozen)), name
        assert (f"{name}/Adam" in first) != bool(parts & set(frozen)), name
    assert seen == {"source_embedding", "target_embedding", "encoder", "decoder", "output"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--freeze=encoder,head"], "--freeze=encoder,head is not allowed: it must name parts of a model"),
        (
            ["--freeze=source_embedding,target_embedding,encoder,decoder,output"],
            "leaves nothing to train: name fewer parts",
        ),
        (["--init_from=none"], "--init_from=none does not exist: give the out_dir of a training"),
        (["--init_from={directory}"], "has no checkpoint: give the out_dir"),
        (["--init_from={directory}/wide"], "--num_units is 8, but that model was trained with 10: give --num_units=10"),
        (["--init_from={directory}/out"], "/out is in --out_dir="),
        (["--init_from={directory}/out/best_bleu"], "/out/best_bleu is in --out_dir="),
    ],
)
def test_mistakes_are_told(toy: Any, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    if "wide" in flags[0]:
        assert main(toy.flags("--num_units=10", f"--out_dir={toy.directory}/wide", "--num_train_steps=1")) == 0
    assert main(toy.flags(*(flag.format(directory=toy.directory) for flag in flags))) == 1
    assert message in capsys.readouterr().err


def test_another_kind_of_model(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Options count that show in no variable; then the checkpoint's variables are those of the new model."""
    assert main(toy.flags("--num_train_steps=1", "--num_units=8", "--embedding_size=8")) == 0
    begins = toy.flags(f"--out_dir={toy.directory}/new", f"--init_from={toy.directory}/out", "--num_train_steps=1")
    for flag, old in (("--forget_bias=0.5", "1.0"), ("--attention=scaled_luong", "'luong'"), ("--residual", "False")):
        capsys.readouterr()
        assert main([*begins, flag]) == 1
        name = flag.partition("=")[0]
        assert f"{name} is " in (told := capsys.readouterr().err) and f"was trained with {old}: give" in told
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        names = ("decoder/a", "decoder/a/Adam", "decoder/more", "decoder/more/Adam", "global_step")
        made = [tf.compat.v1.get_variable(name, [1]) for name in names]
        session.run([variable.initializer for variable in made])
        path = tf.compat.v1.train.Saver().save(session, f"{toy.directory}/one")
        words = Words([], [])
        with pytest.raises(InputError, match="--init_from: the new model lacks decoder/more of .*/one: give the flags"):
            begin_with(session, made[:1], path, toy.architecture, words, words)
        assert begin_with(session, [made[0], made[2]], path, toy.architecture, words, words)


@pytest.mark.long("five trainings")
def test_a_run_that_has_begun_otherwise(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert main(toy.flags(f"--out_dir={toy.directory}/{name}", "--num_train_steps=1")) == 0
    begun = [f"--out_dir={toy.directory}/new", "--num_train_steps=1"]
    assert main(toy.flags(*begun, f"--init_from={toy.directory}/a")) == 0
    before = (toy.directory / "new/hparams").read_bytes()
    assert main(toy.flags(*begun, f"--init_from={toy.directory}/b")) == 1
    assert f"which began with {toy.directory}/a: leave it out" in capsys.readouterr().err
    assert (toy.directory / "new/hparams").read_bytes() == before
    assert main(toy.flags(f"--out_dir={toy.directory}/b", f"--init_from={toy.directory}/a")) == 1
    assert "which began with random weights: leave it out" in capsys.readouterr().err
    assert main(toy.flags(*begun, f"--init_from={toy.directory}/a/")) == 0


def test_a_run_whose_vocabulary_is_gone(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(toy.flags("--num_train_steps=1")) == 0
    for side in ("en", "de"):
        (toy.directory / f"vocab.{side}").rename(toy.directory / f"new.{side}")
    flags = [f"--out_dir={toy.directory}/new", f"--vocab_prefix={toy.directory}/new"]
    assert main(toy.flags(*flags, f"--init_from={toy.directory}/out")) == 1
    wanted = f"--init_from={toy.directory}/out needs {toy.directory}/vocab.en, the vocabulary that this run was trained"
    assert wanted in capsys.readouterr().err
