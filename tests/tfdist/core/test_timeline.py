"""The trace of who waited for whom."""

from __future__ import annotations

import json
from pathlib import Path

from tfdist.core import timeline


class TestTimeline:
    def events(self, late: float) -> list[timeline.Event]:
        made = []
        for step in range(1, 4):
            start = step * 1.0 + late
            made += [
                timeline.Event("wait", "average", step, "bucket", start, step + 0.3),
                timeline.Event("reduce", "average", step, "bucket", step + 0.3, step + 0.5),
                timeline.Event("held up", "average", step, "bucket", step + 0.4, step + 0.5),
            ]
        return made

    def test_a_trace_that_chrome_reads_and_a_table(self, tmp_path: Path) -> None:
        ranks = [self.events(0.0), self.events(0.2)]
        timeline.write(str(tmp_path / "trace.json"), ranks)
        trace = json.loads((tmp_path / "trace.json").read_text())
        assert {e["pid"] for e in trace} == {0, 1}
        assert [e["name"] for e in trace if e["ph"] == "i" and e["pid"] == 0] == ["step 1", "step 2", "step 3"]
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in trace if e["ph"] == "X")
        assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
        lines = timeline.table(ranks).splitlines()
        assert lines[1].split() == ["0", "3", "1000.00", "900.00", "200.00", "50%", "0"]
        assert lines[2].split()[-1] == "3"  # always the last
