"""Messages name the flags of the program that tells them."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nmt import datasets, export, prepare, report, score, shortlist, translate, tune_search
from nmt.options.config import FIELDS, Config
from nmt.options.option import options_of
from nmt.runs.program import spelled
from tests.launch import ROOT

FLAG = re.compile(r"nmt\.\w+(?: --[\w=]+)+|--(?!help|name\b)(\w+)")
OF_MODEL: dict[str, tuple[Any, type]] = {
    "translate": (translate.main, translate.TranslateOptions),
    "score": (score.main, score.ScoreOptions),
    "export": (export.main, export.ExportOptions),
    "report": (report.main, report.ReportOptions),
    "tune_search": (tune_search.main, tune_search.TuneOptions),
}
# Modules whose messages are those of one program; in all others flags are those of nmt.nmt, or of OF_MODEL.
OWN: dict[str, list[type]] = {
    **{f"nmt/{name}.py": [kind] for name, (_, kind) in OF_MODEL.items()},
    **{f"nmt/{name}.py": [prepare.PrepareOptions] for name in ("prepare", "text/subwords", "core/parallel")},
    "nmt/datasets.py": [datasets.DatasetOptions],
    "nmt/shortlist.py": [shortlist.ShortlistOptions],
    "nmt/options/search_options.py": [export.ExportOptions],
    "nmt/tune_search.py": [tune_search.TuneOptions, Config],  # it finds a flag of nmt.nmt
}


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module but for docstrings; a value in a text is VALUE, after a space."""
    tree = ast.parse(path.read_text())
    bodies = (node.body[0] for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
    known = {id(body.value) for body in bodies if isinstance(body, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            known |= set(map(id, node.values))
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else " VALUE" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in known:
            yield node.value


def flags_in(text: str) -> set[str]:
    return {name if name in FIELDS else name.removeprefix("no") for name in FLAG.findall(text) if name}


@pytest.mark.parametrize("program", [None, *OF_MODEL])
def test_all_messages_name_flags_of_the_program(program: str | None) -> None:
    """Each message of a room below, as each program that could tell it spells it."""
    seen = 0
    for path in sorted(ROOT.glob("nmt/**/*.py")):
        name = str(path.relative_to(ROOT))
        own = OWN.get(name, [OF_MODEL[program][1] if program else Config])
        for text in texts(path):
            said = spelled(text, own[0]) if program and name not in OWN else text
            wrong = flags_in(said.partition("python -m")[0]).difference(*map(options_of, own))
            # Only translate and score read raw text, and both have --format.
            assert not wrong - {"format"} if "raw text cannot be read" in said else not wrong, (name, said)
            seen += bool(flags_in(text))
    assert seen > 150


@pytest.mark.parametrize(
    ("saved", "message", "programs"),
    [
        ({"min_length": 7}, "the run's min_length=7 does not fit --tgt_max_len_infer=4", ["translate", "export"]),
        (
            {"coverage_penalty_weight": 1, "attention": ""},
            "the run's coverage_penalty_weight needs the run's at",
            OF_MODEL,
        ),
        ({"vocab_prefix": "gone/vocab"}, "Start in that directory", OF_MODEL),
    ],
)
def test_programs_that_open_a_model(
    raw_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    saved: dict[str, Any],
    message: str,
    programs: list[str],
) -> None:
    run = shutil.copytree(raw_run / "run", tmp_path / "run")
    (run / "hparams").write_text(json.dumps(json.loads((run / "hparams").read_text()) | saved))
    if "vocab_prefix" in saved:
        shutil.rmtree(run / "preparation")
    text = tmp_path / "text"
    text.write_text("Ten.\n")
    given = {
        "translate": [f"--model={run}", f"--input={text}", "--tgt_max_len_infer=4", "--format=tokens"],
        "export": [f"--model={run}", f"--export_dir={tmp_path}/new", "--tgt_max_len_infer=4"],
        "score": [f"--model={run}", f"--source={text}", f"--target={text}", "--format=tokens"],
        "tune_search": [f"--model={run}"],
        "report": [str(run)],
    }
    for program in programs:
        main, kind = OF_MODEL[program]
        assert main([program, *given[program]]) == (program != "report"), program  # that leaves the attention out
        told = capsys.readouterr().err
        assert message in told and "give the run's" not in told, (program, told)
        assert flags_in(told) <= set(options_of(kind)), (program, told)
