"""What the README files show runs, their scripts on two ranks; and their tables say what the code does."""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import tfdist
from tests import readme_commands
from tests.launch import ROOT, mpirun
from tests.readme_commands import Command, NoRuleError, Run, blocks, commands, prose, readme_files, rule_of
from tfdist.core import exclusions
from tfdist.core.settings import Settings

COMMANDS = [command for path in readme_files() for command in commands(path)]
SCRIPTS = [
    (path.relative_to(ROOT), line, content)
    for path in readme_files()
    for line, language, content in blocks(path.read_text())
    if language == "python"
]


def block(file: str, beginning: str) -> str:
    """Return the Python block in a README file that begins with this text."""
    found = [content for path, _, content in SCRIPTS if str(path) == file and content.startswith(beginning)]
    assert len(found) == 1, f"{file} has {len(found)} blocks that begin with {beginning!r}"
    return found[0]


BEFORE = """
import numpy as np
def load():
    random = np.random.RandomState(0)
    features = random.randn(400, 5).astype("float32")
    return features, features @ np.ones([5, 1], "float32")
def model(x, y):
    w = v1.get_variable("w", [5, 1])
    return tf.reduce_mean((x @ w - y) ** 2)
def save(session):
    print("error", np.abs(session.run(v1.trainable_variables()[0]) - 1).max())
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_script_of_the_readme(tmp_path: Path, ranks: int) -> None:
    script = block("tfdist/docs/start.md", "import tensorflow as tf\nimport tfdist\n\n")
    path = tmp_path / "script.py"
    path.write_text(BEFORE + script.replace("range(1000 // tfdist.size())", "range(300)"))
    finished = mpirun(ranks, [str(path)], 100)
    assert finished.code == 0, finished.errors
    errors = re.findall(r"error (\S+)", finished.output)
    assert len(errors) == 1, "rank 0 alone saves"
    assert float(errors[0]) < 1e-3


BEFORE_KERAS = """
import keras
import numpy as np
import tensorflow as tf
def load():
    random = np.random.RandomState(0)
    x = random.randn(400, 5).astype("float32")
    return x, x @ np.ones([5, 1], "float32")
def build():
    return keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
def everywhere(value):
    return tfdist.all_gather(np.asarray(value)[None])
"""
BEFORE_TAPE = """
model, optimizer = build(), keras.optimizers.SGD(0.1)
"""
AFTER_TAPE = """
def losses():
    share = tfdist.shard(x), tfdist.shard(y)
    for _ in range(50):
        step(*share)
    weights = everywhere(model.layers[-1].kernel)
    assert (weights == weights[0]).all(), "all ranks have the same"
    return float(tf.reduce_mean((model(share[0]) - share[1]) ** 2))
after = losses()
assert after < 0.01, after
"""
BEFORE_AVERAGES = """
model = keras.Sequential([keras.Input([5]), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tfdist.shard(x), tfdist.shard(y), verbose=0)
statistics = everywhere(model.layers[0].moving_mean)
assert not np.allclose(statistics[0], statistics[1]), "they are each rank's own"
"""
AFTER_AVERAGES = """
np.testing.assert_allclose(model.layers[0].moving_mean, statistics.mean(0), rtol=1e-6)
"""
BEFORE_SEEDS = """
def mask():
    return everywhere(keras.layers.Dropout(0.5)(tf.ones([64]), training=True))
keras.utils.set_random_seed(7)
masks = mask()
assert (masks == masks[0]).all(), "one seed, the same masks"
"""
AFTER_SEEDS = """
masks = mask()
assert not (masks == masks[0]).all(), "other masks"
model = build()
model.compile("sgd", "mse")
model.fit(tfdist.shard(x), tfdist.shard(y), verbose=0)
weights = everywhere(model.layers[0].kernel)
assert (weights == weights[0]).all(), "all ranks have the same"
"""
BEFORE_EMERGENCY = """
import os
os.chdir({directory!r})
def fit(*arguments, **more):
    raise tfdist.PeerError("a rank is missing")  # a real one: tests/tfdist/test_failures.py
model.fit = fit
"""
AFTER_EMERGENCY = """
except tfdist.PeerError:
    again = build()
    again.build(model.input_shape)
    again.load_weights(f"emergency-{tfdist.rank()}.weights.h5")
"""
BEFORE_STOP = """
import os, signal
trained, done = step, []
def step(batch):
    if batch == 2 and tfdist.rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    trained(x[:4], y[:4])
    done.append(batch)
batches = range(9)
"""
AFTER_STOP = """
signal.signal(signal.SIGTERM, signal.SIG_DFL)
assert done == [0, 1, 2], "both ranks"
"""
AFTER_REDUCER = """
w = tf.Variable(1.0)
with tf.GradientTape() as tape:
    loss = w * (2.0 + 4.0 * tfdist.rank())
assert float(tape.gradient(loss, w)) == 2.0, "half of the average"
extend.use_reducer(None)
"""
AFTER_STAGE = """
w = tf.Variable([0.0, 0.0])
own = tf.constant([1.0, 3.0]) * (1.0 + tfdist.rank())
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(w * own)
keras.optimizers.SGD(1.0).apply_gradients([(tape.gradient(loss, w), w)])
assert w.numpy().tolist() == [1.5, -1.5], "the average without its mean"
print("all of it ran")
"""


@pytest.mark.long("multirank/cases_*.py call the same")
def test_the_eager_scripts_of_the_readmes(tmp_path: Path) -> None:
    saved = tmp_path / "model.keras"
    averaged = block("tfdist/docs/semantics.md", "tfdist.average_variables(model)")
    parts = [
        BEFORE_KERAS,
        block("tfdist/docs/start.md", "import keras\n").replace("model.keras", str(saved)),
        BEFORE_TAPE,
        block("tfdist/docs/start.md", "@tf.function\n"),
        AFTER_TAPE,
        BEFORE_STOP,
        block("tfdist/docs/semantics.md", "signal.signal(signal.SIGTERM"),
        AFTER_STOP,
        BEFORE_AVERAGES,
        averaged.replace("averaged.keras", f"{tmp_path}/averaged.keras"),
        AFTER_AVERAGES,
        BEFORE_SEEDS,
        block("tfdist/docs/semantics.md", "keras.utils.set_random_seed("),
        AFTER_SEEDS,
        block("tfdist/docs/extending.md", "from tfdist import extend\n\n\nclass Scaled"),
        AFTER_REDUCER,
        block("tfdist/docs/extending.md", "import tensorflow as tf\nfrom tfdist import extend\n"),
        AFTER_STAGE,
        BEFORE_EMERGENCY.format(directory=str(tmp_path)),
        "try:",
        textwrap.indent(block("tfdist/docs/troubleshooting.md", "try:\n    model.fit("), "    "),
        AFTER_EMERGENCY,
    ]
    path = tmp_path / "script.py"
    path.write_text("\n".join(parts))
    finished = mpirun(2, [str(path)], 100)
    assert finished.code == 0, finished.errors
    assert saved.exists()
    assert "Epoch 10/10" in finished.output
    assert finished.output.count("all of it ran") == 2


@pytest.mark.parametrize(("file", "line", "script"), SCRIPTS, ids=lambda x: str(x) if "\n" not in str(x) else "")
def test_scripts_are_run_or_known_to_be_parts(file: Path, line: int, script: str) -> None:
    """Python blocks that no test runs would become wrong unnoticed."""
    parts = ["import tensorflow as tf\nimport tfdist  # new", "momentum: float = option("]
    names = {node.value for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Constant)}
    run = [name for name in names if isinstance(name, str) and len(name) > 10]
    assert any(script.startswith(beginning) for beginning in [*run, *parts]), f"{file}:{line} is not run by a test"
    ast.parse(script)


Outcomes = Callable[[Run], tuple[int, str]]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return a function that gives a program's result; its first call runs all programs."""
    results: dict[Run, tuple[int, str]] = {}

    def of(run: Run) -> tuple[int, str]:
        if not results:
            results.update(readme_commands.outcomes(_runs(), tmp_path_factory.mktemp("empty"), 300))
        return results[run]

    return of


def _runs() -> list[Run]:
    runs = []
    for command in COMMANDS:
        with contextlib.suppress(NoRuleError):  # test_a_command reports it
            runs.append(rule_of(command))
    return [run for run in runs if run]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command(command: Command, outcome: Outcomes) -> None:
    run = rule_of(command)
    if run:
        code, said = outcome(run)
        assert code == run.code, said
        assert re.search(run.says, said), said
        assert not [flag for flag in run.lists if flag not in said], said


def test_a_command_without_a_rule_is_an_error() -> None:
    for text in ("python -m nmt.other", "scripts/none", "make", "mpirun --what python script.py", "pip install '.[x]'"):
        with pytest.raises(NoRuleError):
            rule_of(Command("README.md", 1, text))
            raise AssertionError(text)


@pytest.mark.parametrize("path", readme_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_named_is_there(path: Path) -> None:
    """Links and files between backticks exist, in the README's folder or in the root; names also in subfolders."""
    text = prose(path.read_text())
    linked = [target.partition("#") for target in re.findall(r"\]\(([^)]+)\)", text)]
    for name, _, anchor in linked:
        if name.startswith("https://"):
            continue
        target = path.parent / name if name else path
        assert target.exists(), name
        if anchor:
            assert anchor in _anchors(target.read_text()), f"{name}#{anchor}"
    package = path.parent.parent if path.parent.name == "docs" else path.parent
    for name in re.findall(r"`([\w./*-]+\.(?:py|sh|json)|[\w-]+/)`", text):
        if name != readme_commands.OWN_SCRIPT:
            below = () if package == ROOT or "/" in name[:-1] else package.rglob(name)
            assert any([*below, *package.glob(name), *ROOT.glob(name)]), name


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def _rows(file: str, heading: str) -> list[list[str]]:
    """Return the cells of a table's rows."""
    table = (ROOT / file).read_text().split(heading)[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.strip().splitlines()[1:]]


def test_the_table_of_settings() -> None:
    rows = {row[0].strip("`"): row[1:] for row in _rows("tfdist/docs/settings.md", "| setting | default | |\n")}
    fields = {f"TFDIST_{name.upper()}": field for name, field in Settings.documented().items()}
    assert len(fields) <= 20
    assert list(rows) != [] and rows.keys() == fields.keys()
    for name, field in fields.items():
        default, meaning = rows[name]
        shown = default.strip("`") if "`" in default else ""  # without backticks, the cell describes a missing value
        text = f"{field.default:g}" if isinstance(field.default, float | bool) else str(field.default)
        assert shown == text, name
        allowed = field.metadata["allowed"]
        choices = [] if isinstance(allowed, str) else allowed
        assert not [c for c in choices if c != "none" and not re.search(rf"`{c}[`:]", meaning)], name


def test_the_table_of_exclusions() -> None:
    shown = [
        f"| {' | '.join(row)} |" for row in _rows("tfdist/docs/settings.md", "| this | and this | because | so |\n")
    ]
    assert shown == list(exclusions.rows())


def test_the_parts_of_a_block() -> None:
    rows = _rows("tfdist/docs/blocks.md", "| part of the value | in `configure` | `bmuf` | `diloco` | |\n")
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == Settings.parts("sync")


def test_the_table_of_calls() -> None:
    rows = _rows("tfdist/docs/start.md", "| call | what it does |\n")
    shown = {name for row in rows for name in re.findall(r"`(\w+)[`(]", row[0] + row[1])}
    text = (ROOT / "tfdist/docs/start.md").read_text()
    ddl = _rows("tfdist/docs/migrating.md", "| `ddl.` | what differs |\n")
    of_ddl = {name for row in ddl for name in re.findall(r"`(\w+)\(", row[0])}
    missing = set(tfdist.__all__) - shown - of_ddl
    assert not {name for name in missing if not (name.endswith("Error") and f"`{name}`" in text)}
    named = of_ddl | {name for row in rows for name in re.findall(r"`(\w+)[`(]", row[0])}
    assert not {name for name in named if not hasattr(tfdist, name)}


def test_what_is_said_of_keras() -> None:
    tree = ast.parse((ROOT / "tfdist" / "keras.py").read_text())
    public = next(
        ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and "__all__" in ast.unparse(n)
    )
    assert not [name for name in public if f"`{name}`" not in (ROOT / "tfdist/docs/start.md").read_text()]


def test_messages_of_the_troubleshooting_page_are_said() -> None:
    texts = ["\0".join(_texts(ast.parse(path.read_text()))) for path in sorted((ROOT / "tfdist").rglob("*.py"))]
    tables = (ROOT / "tfdist/docs/troubleshooting.md").read_text().split("| message | cause | remedy |\n")[1:]
    cells = [row.strip("|").split("|")[0] for table in tables for row in table.split("\n\n")[0].splitlines()[1:]]
    said = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(said) > 40
    for message in said:
        for fragment in (part.strip(" .,;:()") for part in message.split("…")):
            assert any(fragment in text for text in texts), f"{fragment!r} of {message!r}"


def test_every_error_class_is_on_the_troubleshooting_page() -> None:
    page = (ROOT / "tfdist/docs/troubleshooting.md").read_text()
    trees = [
        ast.parse(path.read_text()) for path in sorted((ROOT / "tfdist").rglob("*.py")) if "horovod" not in path.parts
    ]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    errors = {node.name for node in classes if node.name.endswith("Error") and not node.name.startswith("_")}
    assert {"PeerError", "HookError"} < errors
    assert not {name for name in errors - {"LaunchError"} if not re.search(rf"`(tfdist\.)?{name}`", page)}


def _texts(node: ast.AST) -> list[str]:
    """The strings in a program; those with values in them as if each value were a mark of its own."""
    found = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    joined = (n for n in ast.walk(node) if isinstance(n, ast.JoinedStr))
    return found + ["".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in n.values) for n in joined]
