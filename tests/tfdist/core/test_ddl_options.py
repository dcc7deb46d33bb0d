"""Options of IBM's DDL: which parts of a string are understood, and which messages are logged."""

from __future__ import annotations

import pytest

from tfdist.core.ddl_options import DdlOptions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DdlOptions()),
        ("  ", DdlOptions()),
        ("-mode r:4", DdlOptions("-mode r:4", 4)),
        ("-mode  b:4x2 ", DdlOptions("-mode b:4x2", 8)),
        ("-mode m:2x3x4", DdlOptions("-mode m:2x3x4", 24)),
        ("-mode 4x1", DdlOptions("-mode 4x1", 4)),
        ("-mode r:4 -mode r:2", DdlOptions("-mode r:2", 2)),
        ("-mode b:4x2 -dev 0 -dbg_level 1", DdlOptions("-mode b:4x2", 8, ("-dev 0", "-dbg_level 1"))),
        ("-dev 0,1 -verbose -mode r:2x1", DdlOptions("-mode r:2x1", 2, ("-dev 0,1", "-verbose"))),
        ("-level -1 -dev 0 -dev 0", DdlOptions("", 0, ("-level -1", "-dev 0"))),
        ("quickly -dev 0 1", DdlOptions("", 0, ("quickly", "-dev 0 1"))),
        ("-mode", DdlOptions("", 0, ("-mode",))),
        ("-mode r:4y2", DdlOptions("", 0, ("-mode r:4y2",))),
        ("-mode r:4 2", DdlOptions("", 0, ("-mode r:4 2",))),
        ("-modes r:4", DdlOptions("", 0, ("-modes r:4",))),
    ],
)
def test_what_is_understood(text: str, expected: DdlOptions) -> None:
    assert DdlOptions.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "size", "beginnings"),
    [
        ("", 2, []),
        ("-mode r:2x1", 2, []),
        (
            "-mode r:2x2",
            2,
            ["-mode r:2x2 is for a job of 4 ranks, but this job has 2, and continues. Start 4 ranks (tf"],
        ),
        ("-mode r:2", 1, ["-mode r:2 is for a job of 2 ranks, but this job has 1"]),
        ("-mode r:0x2", 2, ["-mode r:0x2 is for a job of 0 ranks"]),
        ("-mode r:2 -dev 0 -dbg_level 1", 2, ["-dev 0, -dbg_level 1: without a meaning here"]),
        ("-dev 0 -mode r:3", 2, ["-mode r:3 is for a job of 3", "-dev 0: without"]),
    ],
)
def test_what_is_told(text: str, size: int, beginnings: list[str]) -> None:
    told = DdlOptions.parse(text).remarks(size)
    assert len(told) == len(beginnings)
    assert all(line.startswith(words) for line, words in zip(told, beginnings, strict=True)), told
