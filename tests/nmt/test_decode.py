"""Translation of lines and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from nmt.errors import InputError
from nmt.translate.decode import SearchSettings, TranslationModel, translate_file

LINES = ["a b c", "", "d", "   ", "g f e d c b a", "b unknown"]


@pytest.fixture(params=[0, 3], ids=["greedy", "beam"])
def models(request: pytest.FixtureRequest, toy: Any) -> list[TranslationModel]:
    """Two models with the same weights, that translate one and four sentences at a time."""
    made = []
    for batch_size in (1, 4):
        settings = SearchSettings(beam_width=request.param, batch_size=batch_size, tgt_max_len=12)
        made.append(TranslationModel(toy.architecture, toy.src_vocab, toy.tgt_vocab, settings))
    one, four = (model.session.graph for model in made)
    with one.as_default():
        made[0].session.run(tf.compat.v1.global_variables_initializer())
        variables = one.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        values = {variable.op.name: made[0].session.run(variable) for variable in variables}
    for variable in four.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
        made[1].session.run(variable.initializer, {variable.initializer.inputs[1]: values[variable.op.name]})
    return made


def test_order_and_blank_lines_stay_and_batches_do_not_matter(models: list[TranslationModel]) -> None:
    one, four = (model.translate(LINES) for model in models)
    assert one == four
    assert (one[1], one[3]) == ("", "")
    assert [models[1].translate([line])[0] for line in LINES] == one
    assert all(len(line.split()) <= 12 for line in one)
    assert models[0].translate([]) == []


def test_file(models: list[TranslationModel], tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(LINES))
    assert translate_file(models[1], str(source), str(target)) == len(LINES)
    assert target.read_text() == "".join(line + "\n" for line in models[1].translate(LINES))


def test_a_bad_input_leaves_the_output(models: list[TranslationModel], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b\n\xff\n")
    (tmp_path / "out").write_text("before")
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        translate_file(models[0], str(tmp_path / "in"), str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "before"
    (tmp_path / "in").write_text("a\n")
    with pytest.raises(InputError, match="missing/out"):
        translate_file(models[0], str(tmp_path / "in"), str(tmp_path / "missing" / "out"))
