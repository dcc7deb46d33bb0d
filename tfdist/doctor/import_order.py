"""Import order: whether a script imports tfdist before TensorFlow does anything, read from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tfdist.doctor.findings import FIX, NOTE, OK, Finding

_WHAT = "import order"
_FRAMEWORKS = "tensorflow", "keras", "tf_keras"
_OURS = "tfdist"
# Calls that change nothing that tfdist must see: they may stand before the import.
_HARMLESS = ("logging.", "get_logger", "set_verbosity", "set_soft_device_placement", "version")


def examine(script: str) -> Iterator[Finding]:
    """Yield the findings on a script; its modules are not followed."""
    try:
        tree = ast.parse(Path(script).read_text(), script)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        yield Finding(FIX, _WHAT, f"{script} cannot be read: {error}")
        return
    ours, names, early = 0, set(), ""
    for node in tree.body:
        imported = dict(_imports(node))
        if any(module.split(".")[0] == _OURS for module in imported.values()):
            ours = node.lineno
            break
        names |= {name for name, module in imported.items() if module.split(".")[0] in _FRAMEWORKS}
        if any(module == "mpi4py.MPI" for module in imported.values()):
            early = early or f"line {node.lineno} starts MPI (mpi4py.MPI), which tfdist could not prepare"
        if not isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for call in ast.walk(node):
                text = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                if text.split(".")[0] in names and not any(word in text for word in _HARMLESS):
                    early = early or f"line {call.lineno} calls {text}"  # type: ignore[attr-defined]
    if not ours:
        remedy = f"add 'import tfdist' at its top, or start it by tfdist-run -n 2 {script}"
        yield Finding(NOTE, _WHAT, f"{script} does not import tfdist itself: {remedy}")
    elif early:
        yield Finding(FIX, _WHAT, f"{script}: {early} before line {ours} imports tfdist: move that import to the top")
    else:
        yield Finding(OK, _WHAT, f"{script} imports tfdist in line {ours}, before TensorFlow is used")


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (name in the script, module) of what a statement imports, also inside conditions."""
    for inner in ast.walk(node) if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ():
        if isinstance(inner, ast.Import):
            for alias in inner.names:
                yield alias.asname or alias.name.split(".")[0], alias.name
        elif isinstance(inner, ast.ImportFrom) and inner.module:
            for alias in inner.names:
                yield alias.asname or alias.name, f"{inner.module}.{alias.name}"
