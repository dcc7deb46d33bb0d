"""Import order: whether a script imports tfdist before TensorFlow does anything, read from its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tfdist.core.settings import IN_THE_GRAPH
from tfdist.doctor.findings import FIX, NOTE, OK, Finding

_WHAT = "import order"
_FRAMEWORKS = "tensorflow", "keras", "tf_keras"
_OURS = "tfdist"
_PYTHON = "", ".py", ".pyw"
# A step that was built before the import is refused when it runs (tfdist.variables.earlier_graphs).
_TRAINS = "gradients", "minimize", "apply_gradients"
# With an engine of TensorFlow the import is refused if TensorFlow has executed something
# (tfdist.graph.tensorflow_collectives). These calls execute nothing.
_EXECUTES_NOTHING = ("set_seed", "physical_devices", "memory_growth", "visible_devices", "layers.", "tf.function")
# Calls that change nothing that tfdist must see: they may stand before the import.
_HARMLESS = ("logging.", "get_logger", "set_verbosity", "set_soft_device_placement", "version")


def examine(script: str, engine: str = "auto") -> Iterator[Finding]:
    """Yield the findings on a script; its modules are not followed.

    Args:
      script: path of the script.
      engine: the setting ``engine``.
    """
    if Path(script).suffix not in _PYTHON:
        told = f"{script} is not read, only Python scripts are (a notebook: jupyter nbconvert --to script {script})"
        yield Finding(NOTE, _WHAT, told)
        return
    try:
        tree = ast.parse(Path(script).read_bytes(), script)  # bytes: the text may name its encoding
    except (OSError, SyntaxError, ValueError) as error:
        yield Finding(FIX, _WHAT, f"{script} cannot be read: {error}")
        return
    ours, early, refused = 0, "", ""
    names: set[str] = set()
    made: set[str] = set()  # variables with what TensorFlow has returned, such as an optimizer
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
                if not isinstance(call, ast.Call):
                    continue
                text = ast.unparse(call.func)
                root, told = re.split(r"\W", text, maxsplit=1)[0], f"line {call.lineno} calls {text}"
                if root in names | made and text.rpartition(".")[2] in _TRAINS:
                    refused = refused or f"{told}, for a step that is refused"
                if root in names and not any(word in text for word in _HARMLESS):
                    early = early or told
                    if engine in IN_THE_GRAPH and not any(word in text for word in _EXECUTES_NOTHING):
                        refused = refused or f"the engine {engine} is refused, as {told}"
                if root in names and isinstance(node, ast.Assign):
                    made |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    if not ours:
        remedy = f"add 'import tfdist' at its top, or start it by tfdist-run -n 2 {script}"
        yield Finding(NOTE, _WHAT, f"{script} does not import tfdist itself: {remedy}")
    elif refused or early:
        told = f"{refused or early} before line {ours} imports tfdist: move that import to the top"
        yield Finding(FIX if refused else NOTE, _WHAT, f"{script}: {told}")
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
