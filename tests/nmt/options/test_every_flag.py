"""Each option is read where it acts: outside of the options, by its name or by a property that needs it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import nmt
from nmt.model.registry import FAMILIES, architecture
from nmt.options import model_options
from nmt.options.config import FIELDS
from nmt.options.resolve import resolve
from nmt.runs import inputs
from nmt.runs.training_run import initial_weights
from nmt.text.vocabulary import write_vocabulary
from tests.nmt.options.test_configuration import NEEDED
from tests.nmt.options.test_flags import WITHOUT_EFFECT

MODULES = {path: ast.parse(path.read_text()) for path in Path(nmt.__file__).parent.rglob("*.py")}


def read_in(node: ast.AST) -> set[str]:
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def test_each_option_is_read_where_it_acts() -> None:
    inside = {path for path in MODULES if path.parent.name == "options"}
    read = set().union(*(read_in(tree) for path, tree in MODULES.items() if path not in inside))
    functions = [f for path in inside for f in ast.walk(MODULES[path]) if isinstance(f, ast.FunctionDef)]
    read |= set().union(*(read_in(function) for function in functions if function.name in read))
    read |= {"num_layers", "preset", "hparams_path", "sync", "compression"}  # when options are put together; by name
    read.add("num_workers")  # only 1 is allowed
    read |= {field.name for family in FAMILIES.values() for field in dataclasses.fields(family.architecture)}
    assert FIELDS.keys() - read == WITHOUT_EFFECT.keys() - read


def test_the_families_are_those_of_the_options() -> None:
    assert [*FAMILIES] == model_options.FAMILIES
    families = {name: field.metadata["families"] for name, field in FIELDS.items() if field.metadata["families"]}
    for family, one in FAMILIES.items():
        own = {field.name for field in dataclasses.fields(one.architecture)} & families.keys()
        assert own == {name for name, its in families.items() if family in its}, family


def shape(tmp_path: Path, **given: Any) -> Any:
    words = [f"w{n}" for n in range(20)]
    vocabularies = (write_vocabulary(tmp_path / "v.en", words), write_vocabulary(tmp_path / "v.de", words))
    return architecture(resolve(NEEDED | given), vocabularies, {})


def test_depths(tmp_path: Path) -> None:
    found = shape(tmp_path, num_layers=3, num_decoder_layers=2, attention="luong")
    assert (found.num_encoder_layers, found.num_decoder_layers) == (3, 2)
    assert shape(tmp_path, residual=True).num_encoder_residual_layers == 1


def test_options_with_another_name_in_the_architecture(tmp_path: Path) -> None:
    assert shape(tmp_path, share_vocab=True).share_embedding
    assert shape(tmp_path, embedding_size=5).tgt_embedding_size == 5


def test_initial_weights(tmp_path: Path) -> None:
    made, vectors = shape(tmp_path), inputs.Vectors()
    drawn = initial_weights(resolve(NEEDED | {"init_weight": 0.5, "random_seed": 3}), made, vectors)
    assert (drawn.init_op, drawn.init_weight, drawn.seed) == ("uniform", 0.5, 3)
    assert initial_weights(resolve(NEEDED | {"init_op": "glorot_normal"}), made, vectors).init_op != "uniform"
