"""Examples in docstrings of public names run, alone and on two ranks."""

from __future__ import annotations

import inspect

import pytest

from tests import docstring_examples
from tests.launch import mpirun


@pytest.mark.parametrize("ranks", [1, 2])
def test_examples_run(ranks: int) -> None:
    finished = mpirun(ranks, ["-m", "tests.docstring_examples"], 200)
    assert finished.code == 0, finished.output + finished.errors


def test_every_public_call_has_an_example() -> None:
    with_examples = {test.name for test in docstring_examples.examples()}
    functions = {name for name, found in docstring_examples.public() if inspect.isfunction(found)}
    missing = {name for name in functions - with_examples if name.rpartition(".")[2] not in docstring_examples.NOT_RUN}
    assert not missing
