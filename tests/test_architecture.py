"""Layers of the packages: which module may import which, and where MPI, the environment and patches may be used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ("tfdist", "nmt")
    for path in sorted(ROOT.glob(f"{package}/**/*.py"))
}

# From bottom to top: the modules of a line may import modules of the lines before it, and of their own package.
ROOMS = {
    "tfdist": "compat core, record, processes, transport, mpi engine, graph, gradients replicas, training, updates, "
    "hooks, start, api api_collectives api_ddl api_updates schedules ddl_keras extend, __init__, "
    "keras horovod doctor, __main__",
    "tfdist.horovod": "named, _state, process_sets, _operation ops compression sync_batch_norm, "
    "collectives basics, rank_ops _reduction functions, optimizers elastic, mpi_ops, __init__, keras, names",
    "nmt": "core, options, text, model, reporting scoring, checkpoints search, train, runs, "
    "nmt prepare datasets shortlist tune_search translate score export report",
    "nmt.model": "architecture, parts, interface session, lstm convs2s transformer, registry, "
    "inference_model batch_input",
}
PUBLIC = {f"tfdist.{module}" for module in ("__init__", "extend", "keras", "schedules")}
ALLOWED_INSIDE = {"nmt.model.lstm.loop_kernel": {"tensorflow.python.util"}}
BESIDE = {  # it is none of the ranks
    "tfdist.launch": {"tfdist.core", "tfdist.launch", "tfdist.processes"},
}

# Lines of each room, at most. A commit that raises one says why.
BUDGETS = {
    "tfdist": 1880, "tfdist/compat": 690, "tfdist/core": 1840, "tfdist/doctor": 740, "tfdist/engine": 2200,
    "tfdist/gradients": 940, "tfdist/graph": 2910, "tfdist/hooks": 1780, "tfdist/horovod": 3030,
    "tfdist/launch": 1600, "tfdist/mpi": 2030,
    "tfdist/processes": 1040, "tfdist/record": 910, "tfdist/replicas": 1590, "tfdist/training": 1820,
    "tfdist/transport": 2060, "tfdist/updates": 2530,
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Return all modules that a file imports, also inside functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys() or {node.module}
    return {f"{name}.__init__" if f"{name}.__init__" in MODULES else name for name in found}


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    return {name: imports(path) for name, path in MODULES.items()}


def folder_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def test_no_room_grows() -> None:
    lines: dict[str, int] = {}
    for path in MODULES.values():
        lines[folder_of(path)] = lines.get(folder_of(path), 0) + path.read_text().count("\n")
    assert {room: lines[room] for room, most in BUDGETS.items() if lines[room] > most} == {}


# Places of each room that ask whether a session or a function runs what is built, or whether it executes eagerly. Hooks
# and the state of functions answer it. A new place in another room says why.
ASKS = re.compile(r"\b(?:in_session|executing_eagerly|executing_eagerly_outside_functions)\(\)")
ANSWERS = ("tfdist.hooks.", "tfdist.graph.function_state")
PLACES = {
    "tfdist": 4, "tfdist/gradients": 1, "tfdist/graph": 10, "tfdist/horovod": 12, "tfdist/training": 7,
    "tfdist/updates": 16,
}  # fmt: skip


def test_few_places_ask_how_a_program_runs() -> None:
    places: dict[str, int] = {}
    for name, path in MODULES.items():
        if name.startswith("tfdist.") and not name.startswith(ANSWERS):
            places[folder_of(path)] = places.get(folder_of(path), 0) + len(ASKS.findall(path.read_text()))
    assert {room: found for room, found in places.items() if found > PLACES.get(room, 0)} == {}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def line_of(package: str, module: str) -> int | None:
    """Return the number of a module's line in ``ROOMS``; None if the module is not in the package."""
    own = module.removeprefix(f"{package}.").split(".")[0]
    lines = [line.split() for line in ROOMS[package].split(", ")]
    return next((n for n, line in enumerate(lines) if own in line), None) if module != own else None


@pytest.mark.parametrize("package", ROOMS)
def test_arrows_go_down(package: str, known: dict[str, set[str]]) -> None:
    wrong = []
    for name in (n for n in MODULES if n.startswith(f"{package}.")):
        room = room_of(name)
        if room in BESIDE:
            wrong += [
                f"{name} -> {m}" for m in known[name] if m in MODULES and ".".join(m.split(".")[:2]) not in BESIDE[room]
            ]
        elif name != f"{package}.__init__" or package == "tfdist":
            own = line_of(package, name)
            assert own is not None, f"{name} has no place in the rooms"
            for other in known[name]:
                line = line_of(package, other) if other in MODULES else None
                same = other.split(".")[: package.count(".") + 2] == name.split(".")[: package.count(".") + 2]
                wrong += [f"{name} -> {other}"] if line is not None and not same and line >= own else []
    assert not wrong, "these imports go to the same line of ROOMS or to a later one"


def test_there_are_no_circles(known: dict[str, set[str]]) -> None:
    left = {name: others & MODULES.keys() for name, others in known.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, "each of these imports another one of them"


def test_private_modules_are_known_in_their_room_only(known: dict[str, set[str]]) -> None:
    wrong = [
        f"{name} -> {other}"
        for name, others in known.items()
        for other in others & MODULES.keys()
        if re.search(r"\._[a-z]", other) and other.rpartition(".")[0] != name.rpartition(".")[0]
    ]
    assert not wrong, "these modules belong to another room"


@pytest.mark.parametrize("room", sorted({p.parent for p in MODULES.values()}), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_say_what_they_are(room: Path) -> None:
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


@pytest.mark.parametrize("name", MODULES)
def test_what_belongs_to_one_room_is_nowhere_else(name: str, known: dict[str, set[str]]) -> None:
    roots = {module.split(".")[0] for module in known[name]}
    text = MODULES[name].read_text()
    if name != "tfdist.launch.probe" and not name.startswith("tfdist.mpi._"):
        assert "mpi4py" not in roots
    if name not in ("tfdist.core.environment", "nmt.core.start"):  # before tfdist is imported
        assert "os.environ" not in text and "getenv" not in text
    if name.startswith("tfdist."):
        assert "nmt" not in roots
    else:
        assert {module for module in known[name] if module.split(".")[0] == "tfdist"} <= PUBLIC
    if not name.startswith(("tfdist.compat.", "tfdist.hooks.")):
        inside = {m for m in known[name] if re.match(r"(tensorflow\.python|(tf_)?keras\.src)\b", m)}
        assert not inside - ALLOWED_INSIDE.get(name, set())
    if name != "tfdist.hooks.patches":
        assert not re.search(r"^\s*(tf|tf_\w+|ops|gradients_util)\.[\w.]+ = ", text, re.MULTILINE)


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_are(name: str) -> None:
    text = MODULES[name].read_text()
    assert ast.get_docstring(ast.parse(text))
    assert name.rpartition(".")[2] not in {"utils", "helpers", "common", "misc", "base"}


# What only Linux has. These modules have another answer elsewhere; all others ask tfdist.core.system.
LINUX = re.compile(
    r"/proc/|/dev/shm|sched_\w+|prctl|pidfd_open|memfd_create|process_vm_\w+|posix_fallocate|/sys/(?:fs|devices)/.*"
)
ASKS_LINUX = {
    *("tfdist.core.system", "tfdist.processes.process_state", "tfdist.processes.launcher_watch"),
    *("tfdist.processes.mapped_memory", "tfdist.processes.devices"),
    *("tfdist.launch.probe", "tfdist.processes.companion_process"),  # run by themselves
    "tfdist.mpi._neighbours",  # names a call in a message
    *("nmt.core.lock", "nmt.core.parallel", "nmt.runs.tfdist_ranks"),
}


def test_linux_is_asked_in_few_places() -> None:
    found = set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            text = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", "")
            if isinstance(text, str) and id(node) not in docstrings and LINUX.match(text):
                found.add(name)
    assert found <= ASKS_LINUX, found - ASKS_LINUX
