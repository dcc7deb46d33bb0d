"""Commands in README files: this module finds them, and runs them as far as that is cheap.

Commands are lines of fenced blocks without a language, lines of indented blocks, and text between backticks that
begins with a program. Programs are run until they have read their options, by ``--help``. ``MODULES`` and ``SCRIPTS``
have those with another rule:

- quick commands are run unchanged (``python -m tfdist``);
- others get ``--dry-run``, or ``--collect-only`` for pytest. Or they run in an empty folder, where training ends at the
  first missing file;
- for launchers and installers only the options are checked.

Python programs run one
after the other in one process, ``python -m tests.readme_commands``, because each would import TensorFlow.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.launch import ROOT

# Names that stand in commands for the reader's own script and module.
OWN_SCRIPT, OWN_MODULE, OWN_HOSTFILE = "script.py", "package.module", "hosts.txt"
PROGRAM = re.compile(r"(\S*/)?(python[\d.]*|mpirun|srun|tfdist-run|pip|pytest|bash)|scripts/[\w/]+")
# launcher -> option in the examples -> number of values that follow the option
LAUNCHERS = {
    "mpirun": {"-n": 1, "-hosts": 1, "-bind-to": 1, "--host": 1, "--bind-to": 1, "--allow-run-as-root": 0},
    "srun": {"--nodes": 0, "--ntasks-per-node": 0, "--kill-on-bad-exit": 0, "--mpi": 0},
}


class NoRuleError(Exception):
    """A command that cannot be checked, or is wrong."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command in a README file.

    Attributes:
      file: path of the README file.
      line: line number.
      text: the command, on one line.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.text}"


@dataclasses.dataclass(frozen=True)
class Run:
    """A Python program to run, with the expected exit code and output.

    Attributes:
      program: a module, or the path of a script.
      arguments: arguments of the program.
      here: True: run in the project's root; False: in an empty folder.
      code: expected exit code.
      says: regular expression that the output must match.
      lists: options that the output must name.
    """

    program: str
    arguments: tuple[str, ...]
    here: bool = False
    code: int = 0
    says: str = ""
    lists: tuple[str, ...] = ()


def readme_files() -> list[Path]:
    """Return the project's README and documentation files, without installed or generated ones."""
    places = "README.md", "[a-z]*/README.md", "[a-z]*/[a-z]*/README.md", "[a-z]*/docs/*.md", "tfdist/CHANGELOG.md"
    found = [path for place in places for path in ROOT.glob(place)]
    return sorted(path for path in found if path.relative_to(ROOT).parts[0] != "build")


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number of the first line, language, content) of each code block in a Markdown text.

    Indented blocks have no language.
    """
    lines = text.split("\n")
    number, blank = 0, True
    while number < len(lines):
        fence = re.match(r"(`{3,})(\w*)$", lines[number].strip())
        if fence or (blank and lines[number].startswith("    ")):
            start = end = number + bool(fence)
            while end < len(lines) and (lines[end].strip() != fence[1] if fence else lines[end].startswith("    ")):
                end += 1
            yield start + 1, fence[2] if fence else "", "\n".join(lines[start:end])
            number = end + bool(fence)
        else:
            blank = not lines[number].strip()
            number += 1


def prose(text: str) -> str:
    """Return a Markdown text without its code blocks; lines keep their numbers."""
    lines = text.split("\n")
    for start, _, content in blocks(text):
        for number in range(start - 1, start + content.count("\n")):
            lines[number] = ""
    return "\n".join("" if line.startswith("```") else line for line in lines)


def commands(path: Path) -> Iterator[Command]:
    """Yield all commands of a README file."""
    text, name = path.read_text(), str(path.relative_to(ROOT))
    for start, language, content in blocks(text):
        if language not in ("", "sh", "bash"):
            continue
        logical, begun = "", start
        for number, line in enumerate(content.split("\n"), start):
            logical, begun = (logical + line, begun) if logical else (line, number)
            if logical.endswith("\\"):
                logical = logical[:-1]
                continue
            if shlex.split(logical, comments=True):
                yield Command(name, begun, " ".join(logical.split()))
            logical = ""
    running = prose(text)
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", running):
        content = " ".join(match[1].split())
        first, *more = content.split(" ")
        if PROGRAM.fullmatch(first) and (more or _is_program(first)):
            yield Command(name, running[: match.start()].count("\n") + 1, content)


def _is_program(word: str) -> bool:
    return (ROOT / word).is_file() and os.access(ROOT / word, os.X_OK)


def rule_of(command: Command) -> Run | None:
    """Return the program to run for a command; None if the rule only checks the command's form.

    Raises:
      NoRuleError: the command has no rule, or its form is wrong.
    """
    words = shlex.split(command.text, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        del words[0]
    return _rule_of(words)


def _rule_of(words: Sequence[str]) -> Run | None:
    program, *arguments = words
    name = Path(program).name
    if name in LAUNCHERS:
        rest = _after_options(arguments, LAUNCHERS[name])
        return _rule_of(rest) if rest else None
    if name == "tfdist-run":
        arguments = arguments or ["--help"]
        dry = () if arguments == ["--help"] else ("--dry-run", "--no-check")
        return Run("tfdist.launch.command", (*dry, *arguments), says="tfdist-run")
    if re.fullmatch(r"python[\d.]*", name) and arguments:
        if arguments[0] == "-m":
            return _module(arguments[1], arguments[2:])
        return _rule_of(arguments)
    if name == "pip":
        _pip(arguments)
        return None
    if name in (OWN_SCRIPT, OWN_MODULE):
        return None
    if program.startswith("scripts/"):
        if not (ROOT / program).is_file():
            raise NoRuleError(f"there is no {program}")
        if program.startswith("scripts/examples/"):
            return None  # run by test_examples.py
        return SCRIPTS.get(program, _help)(program, arguments)
    raise NoRuleError(f"{program}: no rule in {Path(__file__).name} says how its commands are checked")


def _after_options(words: Sequence[str], known: dict[str, int]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0).partition("=")[0]
        if option not in known:
            raise NoRuleError(f"{option} is not among the known options of this launcher: {', '.join(known)}")
        del rest[: known[option]]
    return rest


def _flags(arguments: Sequence[str]) -> tuple[str, ...]:
    return tuple(a.partition("=")[0] for a in arguments if a.startswith("--"))


def _pip(arguments: Sequence[str]) -> None:
    verb, what = arguments
    extras = re.fullmatch(r"(?:\.|tfdist)(?:\[([\w,]+)\])?", what)
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    if (
        verb != "install"
        or not extras
        or not set((extras[1] or "mpich").split(",")) <= {*setup["options.extras_require"]}
    ):
        raise NoRuleError(f"pip {verb} {what}: setup.cfg has no such extra")


def _module(name: str, arguments: Sequence[str]) -> Run | None:
    if name == OWN_MODULE:
        return None
    if importlib.util.find_spec(name) is None:
        raise NoRuleError(f"there is no module {name}")
    return MODULES.get(name, _help)(name, arguments)


def _as_it_stands(program: str, arguments: Sequence[str]) -> Run:
    return Run(program, tuple(arguments))


def _tfdist(program: str, arguments: Sequence[str]) -> Run:
    if arguments[:1] in (["trace"], ["-H"]):  # needs the files of a failed job, or other hosts
        return _help(program, arguments)
    return Run(program, tuple(arguments), says="started, and averaged right")


def _without_files(program: str, arguments: Sequence[str]) -> Run:
    """Run without the files: the program checks its options before it reports the first missing file."""
    if "--help" in arguments:
        return _as_it_stands(program, arguments)
    return Run(
        program,
        tuple(arguments),
        code=1,
        says=r"cannot be read|must be given|does not exist|there is no directory|has no record",
    )


def _help(program: str, arguments: Sequence[str]) -> Run:
    """Run with --help. The options before it are parsed first; the help's text must list them."""
    return Run(program, (*arguments, "--help"), here=program.startswith("scripts/"), lists=_flags(arguments))


def _collected(program: str, arguments: Sequence[str]) -> Run:
    quiet = ("--collect-only", "-q", "-p", "no:cacheprovider")
    return Run(program, (*arguments, *quiet), here=True, says=r"(?m)^\d+(/\d+)? tests? (collected|found)|::")


def _cases(program: str, arguments: Sequence[str]) -> None:
    """Check that the cases in REPORT [FOLDER.]MODULE.CASE... exist; running them needs a job of ranks."""
    for case in arguments[1:]:
        *folder, module, name = case.split(".")
        path = ROOT / "tests" / (folder[0] if folder else "multirank") / f"{module}.py"
        functions = [n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
        if name not in functions:
            raise NoRuleError(f"{path} has no {name}")


def _shell(program: str, arguments: Sequence[str]) -> None:
    """Check the syntax of a Bash script that takes no options."""
    checked = subprocess.run(["bash", "-n", program], cwd=ROOT, capture_output=True, text=True)
    if checked.returncode or arguments:
        raise NoRuleError(f"{program} {' '.join(arguments)}: {checked.stderr or 'it takes no options'}")


def _scripts_test(program: str, arguments: Sequence[str]) -> None:
    """Check options against the script's --help; pytest's arguments follow: folders, or -k with any words."""
    told = subprocess.run(["bash", program, "--help"], cwd=ROOT, capture_output=True, text=True).stdout
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        form = re.search(rf"\[{option}( [^\]]+)?\]|{program} {option}()", told)
        if not form:
            raise NoRuleError(f"{program} has no {option}: {told}")
        del rest[: bool(form[1])]
    for path in [] if rest[:1] == ["-k"] else rest:
        if not (ROOT / path).exists():
            raise NoRuleError(f"{program}: there is no {path}")


MODULES: dict[str, Callable[[str, Sequence[str]], Run | None]] = {
    "tfdist": _tfdist,
    "nmt.nmt": _without_files,
    "nmt.prepare": _without_files,
    "nmt.shortlist": _without_files,
    "pytest": _collected,
    "tests.multirank.runner": _cases,
    "tests.mutants": lambda program, arguments: _as_it_stands(program, (*arguments, "--list")),
    "tests.plain_words": _as_it_stands,
}
SCRIPTS: dict[str, Callable[[str, Sequence[str]], Run | None]] = {
    "scripts/demo": _shell,
    "scripts/test": _scripts_test,
}


def outcomes(runs: Sequence[Run], folder: Path, timeout_seconds: float) -> dict[Run, tuple[int, str]]:
    """Run programs one after the other in a separate process; return the exit code and output of each.

    Args:
      runs: programs to run.
      folder: an empty folder; the reader's own script and hostfile are written to it.
      timeout_seconds: timeout for all programs together.
    """
    (folder / OWN_SCRIPT).write_text("")
    (folder / OWN_HOSTFILE).write_text("node1:2\n")
    distinct = list(dict.fromkeys(runs))
    asked = json.dumps([dataclasses.asdict(run) for run in distinct])
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.readme_commands"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PATH": programs},
        input=asked,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(distinct, map(tuple, json.loads(done.stdout.splitlines()[-1])), strict=True))


def main() -> None:
    """Run the programs that standard input lists; print all exit codes and outputs in the last line."""
    folder = Path.cwd()
    results = []
    for run in json.load(sys.stdin):
        os.chdir(ROOT if run["here"] else folder)
        results.append(_run(run["program"], run["arguments"]))
    print(json.dumps(results))


def _run(program: str, arguments: Sequence[str]) -> tuple[int, str]:
    said = io.StringIO()
    arguments_before, path_before = sys.argv, list(sys.path)
    sys.argv = [program, *arguments]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            if "/" in program:
                sys.path.insert(0, str((ROOT / program).parent))
                runpy.run_path(str(ROOT / program), run_name="__main__")
            else:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        said.write(traceback.format_exc())
        code = 1
    finally:
        sys.argv, sys.path = arguments_before, path_before
    if isinstance(code, str):
        said.write(code)
        code = 1
    return int(code or 0), said.getvalue()  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
