"""Flags that no other test of the whole program covers: what each changes, or why it has no effect."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import latest
from nmt.model.session import session_config
from nmt.nmt import main
from nmt.options.config import FIELDS, Config
from nmt.options.resolve import resolve
from nmt.text.vocabulary import write_vocabulary
from tests.nmt.conftest import WORDS
from tests.nmt.options.test_configuration import NEEDED
from tests.nmt.runs.test_program import refused, values

# Accepted because command lines and files of the original have them; each help text says "no effect".
WITHOUT_EFFECT = {
    "max_train": "the original stores it and never reads it",
    "scope": "the original parses it and never passes it on",
    "time_major": "a layout is no result: the faster one is always used",
    "num_embeddings_partitions": "the original splits tables between servers; checkpoints are the same",
    "jobid": "a rank's number under mpirun takes its place",
}


def test_flags_without_effect_say_so() -> None:
    for name in WITHOUT_EFFECT:
        assert "no effect" in FIELDS[name].metadata["help"], name
    assert sum("no effect" in field.metadata["help"] for field in FIELDS.values()) == len(WITHOUT_EFFECT)


def trained(toy: Any, *flags: str, name: str = "out") -> dict[str, np.ndarray]:
    """Return the weights after two steps with the output directory ``name``."""
    out = toy.directory / name
    assert main(toy.flags("--num_train_steps=2", "--noevaluate_epochs", f"--out_dir={out}", *flags)) == 0
    return values(str(latest(out)))


def test_share_vocab_has_one_embedding(toy: Any) -> None:
    write_vocabulary(toy.directory / "vocab.en", [*WORDS, *(word.upper() for word in WORDS)])  # contains vocab.de
    names = trained(toy, "--share_vocab").keys()
    assert "embeddings/embedding_share" in names and not any("embedding_decoder" in name for name in names)


@pytest.mark.long("test_every_flag.py has its flags")
def test_the_command_of_the_ddl_article(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the article, except paths, sizes and the number of steps."""
    prefix = toy.directory
    flags = [
        "--src=en", "--tgt=de", f"--vocab_prefix={prefix}/vocab", f"--train_prefix={prefix}/train",
        f"--dev_prefix={prefix}/dev", f"--test_prefix={prefix}/dev", f"--out_dir={prefix}/output2",
        "--batch_size=64", "--num_train_steps=2", "--steps_per_stats=100", "--num_layers=4", "--num_units=8",
        "--dropout=0.2", "--metrics=bleu", "--beam_width=15", "--encoder_type=bi", "--decay_scheme=luong10",
        "--subword_option=bpe", "--num_gpus=1", "--random_seed=1234567",
    ]  # fmt: skip
    assert main(flags) == 0
    assert "# --num_gpus=1, but there is no GPU here: using the CPU" in capsys.readouterr().out
    flags = [flag.replace("output2", "output3").replace("--tgt=de", "--tgt=en") for flag in flags]
    assert "name the same files" in refused(flags, capsys)


def test_language_model(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    weights = trained(toy, "--language_model", "--src=none")
    assert not any("encoder" in name for name in weights)
    said = capsys.readouterr().out
    assert "eval dev: perplexity" in said
    assert main(toy.flags("--num_train_steps=3", "--noevaluate_epochs", "--language_model", "--src=none")) == 0
    assert "continuing after step 2" in capsys.readouterr().out  # its other --attention is no contradiction
    text, output = toy.directory / "dev.de", toy.directory / "written"
    draws = [
        "--infer_mode=sample",
        "--sampling_temperature=1",
        "--num_translations_per_input=2",
        "--tgt_max_len_infer=5",
    ]
    infer = [f"--out_dir={toy.directory}/out", f"--inference_input_file={text}", f"--inference_output_file={output}"]
    assert main([*infer, *draws]) == 0
    lines = output.read_text().splitlines()
    assert len(lines) == 10 and len(set(lines)) > 1


def test_marks_of_sentences(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    marks = ["--sos=<go>", "--eos=<end>"]
    assert "must be '<unk>' '<go>' '<end>'" in re.sub(r"\s+", " ", refused(toy.flags(*marks), capsys))
    for suffix in ("en", "de"):
        path = toy.directory / f"vocab.{suffix}"
        path.write_text(path.read_text().replace("<s>", "<go>").replace("</s>", "<end>"))
    trained(toy, *marks)
    assert json.loads((toy.directory / "out" / "hparams").read_text())["eos"] == "<end>"


def test_workers_are_ranks(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "mpirun -n 3" in refused(toy.flags("--num_workers=3"), capsys)


def test_options_that_would_do_nothing_are_refused(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, needed in (
        (["--length_penalty_weight=1"], "beam search"),
        (["--sampling_temperature=1", "--beam_width=3"], "--infer_mode=sample"),
        (["--forget_bias=0", "--unit_type=gru"], "--unit_type=lstm"),
        (["--init_weight=0.2", "--init_op=glorot_normal"], "--init_op=uniform"),
        (["--num_heads=2"], "another --model_family"),
        (["--model_family=transformer", "--attention=luong"], "another --model_family"),
        (["--model_family=transformer", "--attention=", "--max_positions=90"], "--positions=learned"),
        (["--model_family=transformer", "--attention=", "--init_op=glorot_normal"], "another --model_family"),
        (["--model_family=convs2s", "--attention=", "--residual"], "another --model_family"),
        (["--model_family=convs2s", "--attention=", "--attention_dropout=0.1"], "another --model_family"),
        (["--nooutput_attention", "--attention_architecture=gnmt_v2"], "standard"),
    ):
        told = refused(toy.flags(*flags), capsys)
        assert "would have no effect" in told and needed in told, flags


def test_characters(toy: Any) -> None:
    (toy.directory / "vocab.en").unlink()  # is not read
    weights = trained(toy, "--use_char_encode")
    assert weights["embeddings/encoder/embedding_encoder"].shape[0] == 262  # bytes, and marks of words and sentences


def test_pretrained_embeddings(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = (toy.directory / "vocab.en").read_text().splitlines()[3:]
    (toy.directory / "vectors.en").write_text("".join(f"{w} {n} 0.5 -1\n" for n, w in enumerate(words)))
    weights = trained(toy, f"--embed_prefix={toy.directory}/vectors")
    given = weights["embeddings/encoder/embedding_encoder_pretrained"]
    np.testing.assert_array_equal(given, [[n, 0.5, -1] for n in range(len(words))])
    (toy.directory / "vectors.en").unlink()  # a trained model does not need it
    infer = [f"--inference_input_file={toy.directory}/dev.en", f"--inference_output_file={toy.directory}/x"]
    assert main([f"--out_dir={toy.directory}/out", *infer]) == 0
    assert "neither" in refused(toy.flags(f"--embed_prefix={toy.directory}/none"), capsys)


def test_completed_vocabularies_lie_in_out_dir(toy: Any) -> None:
    for suffix in ("en", "de"):
        path = toy.directory / f"vocab.{suffix}"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[3:]))
    weights = trained(toy)
    assert weights["embeddings/encoder/embedding_encoder"].shape[0] == 10
    assert (toy.directory / "out" / "vocab.en").read_text().startswith("<unk>\n<s>\n</s>\na\n")
    infer = [f"--inference_input_file={toy.directory}/dev.en", f"--inference_output_file={toy.directory}/x"]
    assert main([f"--out_dir={toy.directory}/out", *infer]) == 0


def test_a_file_of_options_comes_before_flags(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = toy.directory / "options.json"
    path.write_text(json.dumps({"num_units": 5, "metrics": ["bleu", "accuracy"]}))
    weights = trained(toy, f"--hparams_path={path}")
    assert weights["embeddings/encoder/embedding_encoder"].shape[1] == 5
    said = capsys.readouterr().out
    assert f"# --num_units=8 is overridden by {path}: 5" in said
    assert "accuracy dev: " in said and "  num_units=5\n" in said  # all options are printed


def test_loaded_options_can_be_overridden(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trained(toy, "--batch_size=4", "--subword_option=bpe")
    out = toy.directory / "out"
    assert main([f"--out_dir={out}", "--num_train_steps=2"]) == 0
    kept = json.loads((out / "hparams").read_text())
    assert (kept["batch_size"], kept["subword_option"]) == (4, "bpe")
    flags = [flag for flag in toy.flags("--num_train_steps=4") if "batch_size" not in flag]
    assert main([*flags, "--override_loaded_hparams"]) == 0
    kept = json.loads((out / "hparams").read_text())
    assert (kept["batch_size"], kept["subword_option"]) == (128, "")
    assert "--num_units=9 contradicts" in refused([f"--out_dir={out}", "--num_units=9"], capsys)
    differs = refused([*flags, "--num_units=9", "--override_loaded_hparams"], capsys)
    assert "does not fit the model" in differs


def test_settings_of_sessions() -> None:
    given = {"num_inter_threads": 3, "num_intra_threads": 2, "log_device_placement": True}
    settings = session_config(resolve(NEEDED | given))
    assert settings.inter_op_parallelism_threads == 3 and settings.intra_op_parallelism_threads == 2
    assert settings.log_device_placement


def test_a_list_of_lines_with_scores_and_pictures(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trained(toy)
    output = toy.directory / "some"
    infer = [
        f"--out_dir={toy.directory}/out", f"--inference_input_file={toy.directory}/dev.en",
        f"--inference_output_file={output}", f"--inference_ref_file={toy.directory}/dev.de",
    ]  # fmt: skip
    assert main([*infer, "--inference_list=1,2", "--metrics=bleu,rouge,accuracy,word_accuracy"]) == 0
    assert len(output.read_text().splitlines()) == 2
    assert [os.path.exists(f"{output}{n}.png") for n in (0, 1, 2)] == [False, True, True]
    said = capsys.readouterr().out
    for name in ("bleu", "rouge", "accuracy", "word_accuracy", "sacrebleu", "chrf"):
        assert f"  {name}: " in said, name
    assert main([*infer, "--inference_list=0"]) == 0
    assert len(output.read_text().splitlines()) == 1
    short = toy.directory / "short"
    short.write_text("A\n")
    output.unlink()
    assert "dev.en has 5 lines and its reference" in refused([*infer, f"--inference_ref_file={short}"], capsys)
    assert not output.exists()  # refused before the work
    assert main([*infer, "--beam_width=2", "--num_translations_per_input=2"]) == 0
    assert len(output.read_text().splitlines()) == 10


def test_checkpoints_are_averaged(toy: Any) -> None:
    flags = ["--num_keep_ckpts=2", "--steps_per_external_eval=2", "--avg_ckpts", "--num_train_steps=6"]
    assert main(toy.flags(*flags, "--noevaluate_epochs")) == 0
    out = toy.directory / "out"
    mean = tf.train.load_checkpoint(str(latest(out / "avg_checkpoints")))
    kept = [values(str(out / f"translate.ckpt-{step}")) for step in (4, 6)]
    for name, value in kept[0].items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(mean.get_tensor(name), (value + kept[1][name]) / 2, rtol=1e-6, err_msg=name)
    assert (out / "output_avg_dev").exists() and (out / "avg_best_bleu").is_dir()


def test_every_option_has_a_type() -> None:
    assert all(field.type for field in FIELDS.values()) and isinstance(resolve(NEEDED), Config)
