"""nmt.export: a SavedModel of strings, which TensorFlow loads where nmt cannot be imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from nmt.export import main
from nmt.nmt import main as nmt
from nmt.options.config import Config
from nmt.search.string_model import _joined, string_translations
from nmt.text.tokens import join
from nmt.text.vocabulary import Vocabulary
from tests.launch import ROOT
from tests.nmt.model import graphs
from tests.nmt.search.test_search import MODELS

CLIENT = ROOT / "scripts/examples/saved_model_client.py"
# Loads a SavedModel where neither package can be imported, and prints the result for the lines of a file.
LOADER = """
import json, sys
sys.modules["nmt"] = sys.modules["tfdist"] = None
import tensorflow as tf
translate = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
found = translate(lines=tf.constant(open(sys.argv[2]).read().split("\\n")[:-1]))
print(json.dumps({name: [[x.decode() if isinstance(x, bytes) else float(x) for x in row] for row in value.numpy()]
                  for name, value in found.items()}))
"""


def exported(directory: Path, lines: Path) -> dict[str, Any]:
    """Return the outputs of a SavedModel for the lines of a file."""
    command = [sys.executable, "-c", LOADER, str(directory), str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    outputs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outputs


@pytest.mark.parametrize("width", [3, pytest.param(0, marks=pytest.mark.long("the same export"))])
def test_the_translations_are_those_of_nmt(raw_run: Path, tmp_path: Path, width: int) -> None:
    """Greedy search, and two translations of beam search; blank lines stay, unknown words and long lines pass."""
    lines = tmp_path / "lines"
    prepared = (raw_run / "data/dev.en").read_text()
    lines.write_text(f"\n{prepared}  \nunknown ⇧  spaces \n" + "a@@ " * 200 + "\n")
    several = min(2, max(1, width))
    search = [f"--beam_width={width}", *(["--length_penalty_weight=0.5"] if width else [])]
    assert (
        main(["export", f"--model={raw_run}/run", f"--export_dir={tmp_path}/model", f"--n_best={several}", *search])
        == 0
    )
    files = [f"--inference_input_file={lines}", f"--inference_output_file={tmp_path}/out", "--max_unknown_share=1"]
    more = [f"--num_translations_per_input={several}", f"--vocab_prefix={tmp_path}/vocab", "--subword_option=bpe"]
    for language in ("en", "de"):  # without the record nmt.nmt writes words, as the model does
        (tmp_path / f"vocab.{language}").write_bytes((raw_run / f"data/vocab.{language}").read_bytes())
    assert nmt([f"--ckpt={raw_run}/run/translate.ckpt-80", *files, *more, *search]) == 0
    outputs = exported(tmp_path / "model", lines)
    assert [text for found in outputs["translations"] for text in found] == (tmp_path / "out").read_text().splitlines()
    assert ("scores" in outputs) == (width > 0)
    if width:
        assert all(first >= second for first, second in outputs["scores"])


@pytest.mark.parametrize("settings", [Config(), Config(beam_width=2, num_translations_per_input=2)])
@pytest.mark.parametrize("kind", ["attention", "transformer", "convs2s"])
def test_a_batch_without_a_word(kind: str, settings: Config) -> None:
    """A form that is sent empty has blank translations; an empty batch has none."""
    with graphs.model(graphs.architecture(**MODELS[kind]), weight=2.0) as (translator, session):
        words = tuple(Vocabulary("v", ("<unk>", "<s>", "</s>", *"abcdefghij"[: size - 3])) for size in (11, 13))
        lines = tf.compat.v1.placeholder(tf.string, [None])
        outputs = string_translations(translator, words, settings, lines)  # type: ignore[arg-type]
        run = session.make_callable(outputs[0] if outputs[1] is None else outputs, [lines])
        session.run(tf.compat.v1.tables_initializer())
        translate = lambda batch: run(batch) if outputs[1] is None else run(batch)[0]  # noqa: E731
        blank = [b""] * settings.translations
        mixed = translate(["", "a b", " "]).tolist()
        assert mixed == [blank, translate(["a b"])[0].tolist(), blank] and mixed[1] != blank
        assert translate(["a </s> b"]).tolist() == translate(["a <unk> b"]).tolist() == translate(["a x b"]).tolist()
        for batch in ([""], ["", " "], []):
            assert translate(batch).tolist() == [blank] * len(batch), batch
            assert outputs[1] is None or run(batch)[1].tolist() == [[0.0] * 2] * len(batch)


def test_the_graph_has_operations_of_tensorflow_alone(raw_run: Path, tmp_path: Path) -> None:
    """The record is in assets.extra."""
    assert main(["export", f"--model={raw_run}/run", f"--export_dir={tmp_path}/new/model"]) == 0
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], f"{tmp_path}/new/model")
    kinds = {node.op for node in model.graph_def.node}
    assert not any("PyFunc" in kind or kind.startswith("Collective") for kind in kinds)
    extra = sorted(path.name for path in (tmp_path / "new/model/assets.extra").iterdir())
    assert extra == ["bpe.codes", "preparation.json", "vocab.de", "vocab.en"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]


@pytest.mark.parametrize("width", [0, 2])
def test_a_run_that_draws_words(raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int) -> None:
    """The export is greedy, or searches with the beam that is asked for."""
    shutil.copytree(raw_run / "run", tmp_path / "run")
    hparams = json.loads((tmp_path / "run/hparams").read_text())
    drawn = {"infer_mode": "sample", "sampling_temperature": 0.7}
    (tmp_path / "run/hparams").write_text(json.dumps(hparams | drawn))
    more = [f"--beam_width={width}"] if width else []
    assert main(["export", f"--model={tmp_path}/run", f"--export_dir={tmp_path}/model", *more]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(", beam_search" if width else ", greedy")


@pytest.mark.parametrize("error", [OSError(13, "Permission denied", "x"), None])
def test_a_disk_that_is_full_or_closed(
    raw_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
) -> None:
    def save(builder: Any) -> None:
        raise error or tf.errors.ResourceExhaustedError(None, None, f"{builder._export_dir}/x; No space left on device")

    monkeypatch.setattr(tf.compat.v1.saved_model.Builder, "save", save)
    assert main(["export", f"--model={raw_run}/run", f"--export_dir={tmp_path}/model"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"export: --export_dir={tmp_path}/model cannot be written (") and "/.model" not in told
    assert "choose another, where you may write and the disk has room" in told and not list(tmp_path.iterdir())


def test_the_client_has_one_message_for_a_mistake(raw_run: Path, tmp_path: Path) -> None:
    for arguments, data, message in (
        ([], b"", "usage: python saved_model_client.py EXPORT_DIR"),
        ([str(raw_run / "run")], b"", "has no record of how to prepare raw text: give prepared text and --tokens"),
        ([str(raw_run), "--tokens"], b"\xff", "standard input is not UTF-8 text"),
    ):
        command = [sys.executable, str(CLIENT), *arguments]
        done = subprocess.run(command, input=data, capture_output=True, timeout=120, cwd=ROOT, check=False)
        last = done.stderr.decode().splitlines()[-1]
        assert done.returncode == 1 and message in last and b"Traceback" not in done.stderr, done.stderr


def test_tokens_are_joined_as_in_python() -> None:
    words = ("<unk>", "<s>", "</s>", "a@@", "b", "@@", "c@@d", "▁e", "f▁", "▁")
    vocabulary = Vocabulary("words", words)
    rows = [[3, 4, 2, 4], [2, 4, 4, 4], [3, 3, 2, 2], [6, 5, 4, 3], [7, 8, 9, 7], [4, 5, 2, 2], [0, 1, 4, 4]]
    for option in ("", "bpe", "spm"):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            found = session.run(_joined(tf.constant([rows]), vocabulary, option))[0]
        wanted = [join(vocabulary.decode(row), option, "</s>") for row in rows]
        assert [text.decode() for text in found] == wanted, option


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--export_dir={run}"], "exists, and nothing is overwritten: choose another name"),
        (["--export_dir={run}/file"], "exists, and nothing is overwritten"),
        ([], "Missing --export_dir"),
        (["--export_dir={run}/hparams/x"], "the directory cannot be made"),
        (["--export_dir={new}", "--n_best=0"], "--n_best=0 is not allowed"),
    ],
)
def test_mistakes_are_told_and_write_nothing(
    raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    run = raw_run / "run"
    (run / "file").write_text("kept")
    given = [flag.format(run=run, new=tmp_path / "new") for flag in flags]
    before = sorted(path.name for path in run.iterdir())
    assert main(["export", f"--model={run}", *given]) == 1
    told = capsys.readouterr().err
    assert told.startswith("export: ") and message in told and len(told.splitlines()) == 1
    assert sorted(path.name for path in run.iterdir()) == before and (run / "file").read_text() == "kept"
    assert not list(tmp_path.iterdir())


def test_a_model_of_characters_is_refused(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert nmt(toy.flags("--use_char_encode", "--num_train_steps=1")) == 0
    assert main(["export", f"--model={toy.directory}/out", f"--export_dir={toy.directory}/model"]) == 1
    assert "cannot be exported: train with words" in capsys.readouterr().err
    assert not (toy.directory / "model").exists()
