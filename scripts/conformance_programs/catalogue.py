"""Which programs there are: read from their source, without importing TensorFlow."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
STYLES = {"graph": "graph", "functions": "function", "eager": "eager", "fit": "fit", "self_check": "eager"}
HIDDEN = "self_check"  # programs that are wrong on purpose, run only when asked for


@dataclasses.dataclass(frozen=True)
class Program:
    """One of them.

    Attributes:
      name: of the function.
      module: where it is.
      style: graph, function, eager or fit; those of a style share a job.
      what: the first line of its docstring.
      differs: why it cannot be equal to one process; empty if it can.
      told: words of the message with which tfdist leaves the ranks apart; empty if it must not.
    """

    name: str
    module: str
    style: str
    what: str
    differs: str
    told: str


def programs(only: Sequence[str] = ()) -> list[Program]:
    """Those whose names match one of the patterns; without patterns, all but the hidden ones."""
    found = [p for path in sorted(FOLDER.glob("*.py")) for p in _of_module(path)]
    names = [p.name for p in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"several programs are called {', '.join(sorted(twice))}: --only could not tell them apart")
    found.sort(key=lambda p: list(STYLES.values()).index(p.style))
    if not only:
        return [p for p in found if p.module != HIDDEN]
    return [
        p for p in found if any(fnmatch.fnmatch(p.name, o) for o in only if p.module != HIDDEN or o.startswith(HIDDEN))
    ]


def _of_module(path: Path) -> list[Program]:
    style = next((STYLES[beginning] for beginning in STYLES if path.stem.startswith(beginning)), None)
    if style is None:
        return []
    result = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args] == ["rank", "size"]:
            if node.name.startswith("_"):
                continue
            text = ast.get_docstring(node) or ""
            what = text.partition("\n")[0]
            result.append(Program(node.name, path.stem, style, what, _after("Differs", text), _after("Told", text)))
    return result


def _after(word: str, docstring: str) -> str:
    found = re.search(rf"(?ms)^{word}: (.+?)(\n\n|\Z)", docstring)
    return " ".join(found[1].split()).rstrip(".") if found else ""
