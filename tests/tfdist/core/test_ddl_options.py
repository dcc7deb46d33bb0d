"""Options of IBM's DDL: which parts of a string are understood, and which messages are logged."""

from __future__ import annotations

import pytest

from tfdist.core.ddl_options import IMPORT, INIT, DdlOptions, applied
from tfdist.core.settings import Settings


def parsed(mode: str = "", letter: str = "", ranks: int = 0, *meaningless: str) -> DdlOptions:
    return DdlOptions(mode, letter, ranks, meaningless=meaningless)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DdlOptions()),
        ("  ", DdlOptions()),
        ("-mode r:4", parsed("-mode r:4", "r", 4)),
        ("-mode  b:4x2 ", parsed("-mode b:4x2", "b", 8)),
        ("-mode m:2x3x4", parsed("-mode m:2x3x4", "m", 24)),
        ("-mode 4x1", parsed("-mode 4x1", "", 4)),
        ("-mode p", parsed("-mode p", "p")),
        ("-mode N:2", parsed("-mode N:2", "n", 2)),
        ("-mode r:4 -mode c:2", parsed("-mode c:2", "c", 2)),
        ("-mode p -dbg_level 2", DdlOptions("-mode p", "p", level="trace")),
        ("-mode p:1x2 -dbg_level 1 -dump_iter 50", DdlOptions("-mode p:1x2", "p", 2, "debug", 50)),
        ("-dbg_level 0", DdlOptions(level="info")),
        ("-dbg_level 3 -dump_iter 0 -dump_iter x", parsed("", "", 0, "-dbg_level 3", "-dump_iter 0", "-dump_iter x")),
        ("-mode b:4x2 -dev 0 -dev_sync 1", parsed("-mode b:4x2", "b", 8, "-dev 0", "-dev_sync 1")),
        ("-dev 0,1 -verbose -mode r:2x1", parsed("-mode r:2x1", "r", 2, "-dev 0,1", "-verbose")),
        ("-level -1 -dev 0 -dev 0", parsed("", "", 0, "-level -1", "-dev 0")),
        ("quickly -dev 0 1", parsed("", "", 0, "quickly", "-dev 0 1")),
        ("-mode", parsed("", "", 0, "-mode")),
        ("-mode x:4", parsed("", "", 0, "-mode x:4")),
        ("-mode p:0", parsed("", "", 0, "-mode p:0")),
        ("-mode p:0x2", parsed("", "", 0, "-mode p:0x2")),
        ("-mode r:4y2", parsed("", "", 0, "-mode r:4y2")),
        ("-mode r:4 2", parsed("", "", 0, "-mode r:4 2")),
        ("-modes r:4", parsed("", "", 0, "-modes r:4")),
    ],
)
def test_what_is_understood(text: str, expected: DdlOptions) -> None:
    assert DdlOptions.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "size", "beginnings"),
    [
        ("", 2, []),
        ("-mode p:2x1 -dump_iter 5 -dbg_level 2", 2, []),
        ("-mode m", 2, []),
        ("-mode r:2x1", 2, ["-mode r:2x1: here this is TensorFlow's ring"]),
        ("-mode b", 2, ["-mode b: here this is NCCL where each rank has a GPU of its own, and else"]),
        ("-mode c:2", 2, ["-mode c:2: here this is the sums by shards"]),
        (
            "-mode p:2x2",
            2,
            ["-mode p:2x2 is for a job of 4 ranks, but this job has 2, and continues. Start 4 ranks (tf"],
        ),
        ("-mode p:2", 1, ["-mode p:2 is for a job of 2 ranks, but this job has 1"]),
        ("-mode p:2 -dev 0 -rebind_iter 9", 2, ["-dev 0, -rebind_iter 9: without a meaning here"]),
        ("-dev 0 -mode p:3", 2, ["-mode p:3 is for a job of 3", "-dev 0: without"]),
    ],
)
def test_what_is_told(text: str, size: int, beginnings: list[str]) -> None:
    told = DdlOptions.parse(text).remarks(size)
    assert len(told) == len(beginnings)
    assert all(line.startswith(words) for line, words in zip(told, beginnings, strict=True)), told


@pytest.mark.parametrize(
    ("text", "gpus", "engine", "level", "every"),
    [
        ("-mode n:2 -dump_iter 7", True, "nccl", "info", 7),
        ("-mode b", False, "auto", "info", 0),
        ("-mode r", False, "collectives", "info", 0),
        ("-mode m -dbg_level 1", False, "mpi", "debug", 0),
        ("-mode c", True, "auto", "info", 0),
        ("-mode p -dbg_level 2", True, "auto", "trace", 0),
        ("-dev 0", True, "auto", "info", 0),
    ],
)
def test_what_is_chosen(text: str, gpus: bool, engine: str, level: str, every: int) -> None:
    found = applied(Settings(), text, IMPORT, gpus)
    assert (found.engine, found.log_level, found.wait_table) == (engine, level, every)


def test_a_job_whose_size_is_not_known() -> None:
    (told,) = DdlOptions.parse("-mode p:4 -foo").remarks(None)
    assert told.startswith("-foo: without a meaning")


def test_settings_have_priority_and_later_options_replace_earlier_ones() -> None:
    given = Settings.from_environment({"TFDIST_ENGINE": "auto", "DDL_OPTIONS": "-mode m -dump_iter 3"})
    assert given.ddl_options == "-mode m -dump_iter 3"
    first = applied(given, given.ddl_options, IMPORT, False)
    assert (first.engine, first.wait_table) == ("auto", 3)
    assert applied(first, "-dump_iter 9", INIT, False).wait_table == 9
