"""Catalogue: the list of the programs, read from their source without importing TensorFlow."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
STYLES = {"graph": "graph", "functions": "function", "eager": "eager", "fit": "fit", "self_check": "eager"}
HIDDEN = "self_check"  # programs that are wrong on purpose; --only must name them


@dataclasses.dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
      name: name of its function.
      module: name of its module.
      style: graph, function, eager or fit; the programs of a style share a job.
      what: first line of its docstring.
      differs: reason why it cannot be equal to one process; empty if it can.
      told: words of tfdist's message that the ranks' variables differ; empty if they must not differ.
    """

    name: str
    module: str
    style: str
    what: str
    differs: str
    told: str


def programs(only: Sequence[str] = ()) -> list[Program]:
    """Return the programs whose names match one of the patterns; without patterns, all but the hidden programs."""
    found = [p for path in sorted(FOLDER.glob("*.py")) for p in _of_module(path)]
    names = [p.name for p in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"several programs are called {', '.join(sorted(twice))}: give each program its own name")
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
