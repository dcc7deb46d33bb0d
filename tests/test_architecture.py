"""Who may know whom; and MPI, the environment and the patches in their rooms."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("tfdist/**/*.py"), *ROOT.glob("nmt/**/*.py")])

# Each may import what stands below it.
TFDIST_LAYERS = [
    {"__main__", "keras", "launch"},
    {"__init__"},
    {"communication"},
    {"_start"},
    {"hooks"},
    {"training"},
    {"graph"},
    {"engine"},
    {"transport"},
    {"core"},
]
# The rooms of nmt; each may import what stands below it, and within model, too.
NMT_LAYERS = [
    {"nmt", "prepare", "phrasebook", "datasets"},  # the commands
    {"runs"},
    {"options"},
    {"train"},
    {"keeping", "translate"},
    {"reporting", "scoring"},
    {"model"},
    {"text", "demo"},
    {"core"},
]
NMT_MODEL_LAYERS = [
    {"trained", "batch_input", "session"},
    {"registry"},
    {"lstm"},
    {"interface"},
    {"parts"},
    {"architecture"},
]


def imports(path: Path) -> set[str]:
    """Every module a file imports, functions' own imports included; not those for types only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(layers: list[set[str]], name: str) -> int | None:
    return next((number for number, names in enumerate(layers) if name in names), None)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_go_down(path: Path) -> None:
    package, *rest = path.relative_to(ROOT).with_suffix("").parts
    own = rest[0]
    layers = TFDIST_LAYERS if package == "tfdist" else NMT_LAYERS
    if package == "nmt" and own == "__init__":
        return
    assert layer(layers, own) is not None, f"{own} has no place in the layers"
    for module in imports(path):
        match = re.fullmatch(rf"{package}\.(\w+).*", module)
        other = match and match.group(1)
        if other and other != own and layer(layers, other) is not None:
            assert layer(layers, other) >= layer(layers, own), f"{own} imports {other}"  # type: ignore[operator]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    roots = {module.split(".")[0] for module in imports(path)}
    text = path.read_text()
    if name not in ("tfdist/transport/_mpi_world.py", "tfdist/transport/_mpi_channel.py", "tfdist/launch/probe.py"):
        assert "mpi4py" not in roots
    if name != "tfdist/core/settings.py":
        assert "os.environ" not in text.replace("``os.environ``", "") and "getenv" not in text
    if name.startswith("tfdist/"):
        assert "nmt" not in roots
    elif name != "nmt/runs/processes.py":
        assert "tfdist" not in roots
    if name != "tfdist/hooks/patches.py":
        assert not re.search(r"^\s*(tf|tf_\w+|ops|gradients_util)\.[\w.]+ = ", text, re.MULTILINE)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_are_small_and_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 330
    assert path.stem not in {"utils", "helpers", "common", "misc", "base"}


NMT = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.glob("nmt/**/*.py")
}


def of_nmt(path: Path) -> set[str]:
    """The modules of nmt that a file imports, those for types only included."""
    tree = ast.parse(path.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not any(alias.name.startswith("_") for alias in node.names), f"{path} imports what is private"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & NMT.keys() or {node.module}
    return found & NMT.keys()


def test_nmt_has_no_circles() -> None:
    left = {name: of_nmt(path) for name, path in NMT.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, "each of these imports another one of them"


@pytest.mark.parametrize(("house", "layers"), [("nmt", NMT_LAYERS), ("nmt.model", NMT_MODEL_LAYERS)])
def test_rooms_of_nmt_import_only_rooms_below(house: str, layers: list[set[str]]) -> None:
    def room(module: str) -> str:
        return module.removeprefix(f"{house}.").split(".")[0] if module.startswith(f"{house}.") else ""

    for name, path in NMT.items():
        for other in of_nmt(path) if room(name) else ():
            if room(other) not in ("", room(name)):
                places = layer(layers, room(name)), layer(layers, room(other))
                assert None not in places and places[0] < places[1], f"{name} imports {other}"  # type: ignore[operator]


@pytest.mark.parametrize("room", sorted({path.parent for path in NMT.values()}), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_of_nmt_can_be_taken_in_at_a_glance(room: Path) -> None:
    assert len(list(room.glob("*.py"))) <= 16
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
