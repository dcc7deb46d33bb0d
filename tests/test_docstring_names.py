"""Docstrings name what exists: names in double backquotes, and arguments."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.launch import ROOT

# Names of other programs and of settings that are made of several.
_FOREIGN = {
    *("AsyncOpKernel", "FuncGraph.watch_variable", "GraphExecutionFunction", "MPI_Abort", "MPI_Finalize", "MPI_Init"),
    *("MPI_Test", "MPI_Win_create", "PR_SET_PDEATHSIG", "ReduceLROnPlateau", "TFDIST_DIVERGENCE", "graph.version"),
    *("XlaOptimizationBarrier", "_internal_py_func", "auto_mixed_precision", "finalize_modules_delete_special"),
    *("TFDIST_WAIT_TABLE", "local_", "ompi_comm_nextcid", "pop_capture", "timeout_seconds", "use_ema", "while_loop"),
}
_PACKAGES = {"tf", "keras", "hvd", "np", "tensorflow", "mpi4py", "os", "sys", "h5py", "tfdist"}
FILES = sorted((ROOT / "tfdist").rglob("*.py"))
Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[Documented, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            yield node, first.lineno, str(first.value.value)


def words(source: str, tree: ast.Module) -> set[str]:
    """Return the words of a module's code and texts, without docstrings and comments."""
    starts = {line for _, line, _ in docstrings(tree)}
    found: set[str] = set()
    texts = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # since Python 3.12
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in texts and token.start[0] not in starts or token.type == tokenize.NAME:
            found |= set(re.findall(r"\w+", token.string))
    return found


def arguments(node: Documented) -> set[str] | None:
    """Return the names of the arguments of a function, or of what makes an object of a class; None: not known."""
    if isinstance(node, ast.ClassDef):
        made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not made:  # a dataclass, or a class whose base has the constructor
            own = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
            return own or None
        node = made[0]
    if not isinstance(node, ast.FunctionDef):
        return None
    every = node.args
    named = [*every.posonlyargs, *every.args, *every.kwonlyargs, *filter(None, [every.vararg, every.kwarg])]
    return {one.arg for one in named}


def test_names_in_backquotes_exist() -> None:
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    of_module: dict[str, set[str]] = {}
    for file in FILES:
        name = file.stem if file.stem != "__init__" else file.parent.name
        of_module.setdefault(name, set()).update(words(file.read_text(), trees[file]))
    known = set(dir(builtins)).union(*of_module.values(), of_module)
    wrong = []
    for file, tree in trees.items():
        for _, line, text in docstrings(tree):
            for name in re.findall(r"``([A-Za-z_][\w.]*\w)(?:\(\))?``", text):
                first, *rest = name.split(".")
                if name in _FOREIGN or first in _PACKAGES:
                    continue
                there = of_module.get(first, set() if rest and rest[0][:1].isupper() else known)
                if not {first} <= known or any(one not in there and one not in of_module for one in rest):
                    wrong.append(f"{where(file, line)}: {name}")
    assert not wrong, "\n".join(wrong)


def test_errors_exist() -> None:
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    known = set(dir(builtins)).union(*(words(file.read_text(), tree) for file, tree in trees.items()))
    wrong = []
    for file, tree in trees.items():
        for _, line, text in docstrings(tree):
            if named := re.search(r"\n( *)Raises:\n((?:\1  .*\n|\n)*)", text):
                listed = re.findall(rf"^{named[1]}  (\w+):", named[2], re.MULTILINE)
                wrong += [f"{where(file, line)}: {name}" for name in listed if name not in known]
    assert not wrong, "\n".join(wrong)


def test_arguments_are_those_of_the_call() -> None:
    wrong = []
    for file in FILES:
        for node, line, text in docstrings(ast.parse(file.read_text())):
            named = re.search(r"\n( *)Args:\n((?:\1  .*\n|\n)*)", text)
            there = arguments(node)
            if named and there is not None:
                listed = re.findall(rf"^{named[1]}  \**(\w+):", named[2], re.MULTILINE)
                wrong += [f"{where(file, line)}: {name}" for name in listed if name not in there]
    assert not wrong, "\n".join(wrong)


def where(file: Path, line: int) -> str:
    return f"{file.relative_to(ROOT)}:{line}"
