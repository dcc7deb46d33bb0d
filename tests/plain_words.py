"""Plain words: find long sentences and vague words in documentation, docstrings, comments and messages.

    python -m tests.plain_words [FILE ...]     # prints each offence with FILE:LINE, and counts them

A sentence has at most 25 words. Text between backticks is one word. A table's cell, a list's item and a parameter's
line begin a new sentence.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.launch import ROOT
from tests.readme_commands import prose

MOST_WORDS = 25
# They do not say what runs at the same time: write "while", or "in another thread".
VAGUE = re.compile(r"\b(beside|aside|meanwhile|what\b[^.;:]{0,40}\bof it)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*_]*(?:\s+|$)")
_FEWEST_WORDS = 6  # shorter strings are no messages
_PART = re.compile(r"^\s*(?:[-*+|>]|\d+\.|#+|[\w*`.]+(?: \([^)]*\))?:)\s")  # beginning of a new sentence


@dataclasses.dataclass(frozen=True)
class Offence:
    """A sentence that breaks the rule.

    Attributes:
      file: path of the file, from the project's root.
      line: line number at which the paragraph begins.
      words: number of words of a long sentence; 0 if the reason is a vague word.
      text: the sentence.
    """

    file: str
    line: int
    words: int
    text: str

    def __str__(self) -> str:
        why = f"{self.words} words" if self.words else f"vague: {VAGUE.search(self.text)[0]}"  # type: ignore[index]
        return f"{self.file}:{self.line}: {why}: {self.text}"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph, with ``CODE`` in place of text between backticks."""
    plain = re.sub(r"``[^`]+``|`[^`]+`", "CODE", text)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"\b(e\.g|i\.e|cf|vs|et al)\.", r"\1", plain)
    for one in _SENTENCE_END.split(plain):
        if one.strip():
            yield " ".join(one.split())


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset of the first line, text) of each paragraph, list item, table cell and parameter."""
    begun, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""]):
        if (not line.strip() or _PART.match(line)) and lines:
            yield begun, "\n".join(lines)
            lines = []
        if not line.strip():
            continue
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                if cell.strip(" -"):
                    yield number, cell
            continue
        if not lines:
            begun = number
        lines.append(re.sub(r"^\s*(?:[-*+>]|\d+\.|#+)\s", "", line))


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, paragraph) of a Markdown text, without its code blocks."""
    for offset, paragraph in paragraphs(prose(text)):
        yield offset + 1, paragraph


def of_python(text: str, messages: bool) -> Iterator[tuple[int, str]]:
    """Yield (line number, paragraph) of docstrings, comments and, if ``messages`` is True, messages."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value): node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None and isinstance(node.body[0], ast.Expr)
    }
    for value in docstrings.values():
        assert isinstance(value, ast.Constant) and isinstance(value.value, str)
        for offset, paragraph in paragraphs(prose(inspect.cleandoc(value.value))):
            yield value.lineno + offset, paragraph
    yield from _comments(text)
    for node, said in _messages(tree) if messages else ():
        if id(node) not in docstrings:
            for offset, paragraph in paragraphs(said):
                yield node.lineno + offset, paragraph


def _comments(text: str) -> Iterator[tuple[int, str]]:
    begun, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, own_line = token.start[0], not token.line[: token.start[1]].strip()
        said = re.sub(r"# ?(?:noqa|type:|fmt:).*", "", token.string.lstrip("#! "))
        if lines and not (own_line and row == last + 1):
            yield begun, "\n".join(lines)
            lines = []
        if not lines:
            begun = row
        lines.append(said)
        last = row if own_line else -1
    if lines:
        yield begun, "\n".join(lines)


def _messages(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in ast.walk(node) if part is not node)
            said = "".join(str(p.value) if isinstance(p, ast.Constant) else "VALUE" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            said = node.value
        else:
            continue
        if len(said.split()) >= _FEWEST_WORDS and re.search(r"[a-z]{2} [a-z]{2}", said) and not _is_program(said):
            yield node, said


def _is_program(said: str) -> bool:
    """Return True if a string is a program of several lines, for Python or a shell."""
    if "\n" not in said.strip() or said.lstrip().startswith("#!") or "\\\n" in said:
        return "\n" in said.strip()
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(textwrap.dedent(said.replace("{{", "{").replace("}}", "}"))))
    return False


def offences(path: Path) -> Iterator[Offence]:
    """Yield the offences of a file."""
    return offences_in(path.read_text(), str(path.relative_to(ROOT)))


def offences_in(text: str, name: str) -> Iterator[Offence]:
    """Yield the offences of a text. The suffix of ``name`` tells Markdown from Python."""
    messages = not name.startswith("tests/")  # there most strings are programs, or match messages
    for line, paragraph in of_markdown(text) if name.endswith(".md") else of_python(text, messages):
        for sentence in sentences(paragraph):
            count = sum(bool(re.search(r"\w", word)) for word in sentence.split())
            if count > MOST_WORDS:
                yield Offence(name, line, count, sentence)
            if VAGUE.search(sentence):
                yield Offence(name, line, 0, sentence)


def files() -> Sequence[Path]:
    """Return the Python and Markdown files of the project, with scripts that have no suffix."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [ROOT / name for name in listed.split("\n") if name]
    return [path for path in found if path.is_file() and (path.suffix in (".py", ".md") or _is_script(path))]


def _is_script(path: Path) -> bool:
    return (
        path.parent.name in ("scripts", "bench", "stress", "studies")
        and not path.suffix
        and "python" in path.open("rb").readline().decode("utf-8", "replace")
    )


def main() -> None:
    """Print the offences of the files in the arguments, or of all files."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or files()
    found = [offence for path in chosen for offence in offences(path)]
    for offence in found:
        print(offence)
    long = sum(bool(offence.words) for offence in found)
    print(f"{long} sentences of more than {MOST_WORDS} words, {len(found) - long} with a vague word")


if __name__ == "__main__":
    main()
