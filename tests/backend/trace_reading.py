"""Reading traces in the Trace Event Format, with its rules: what Perfetto and Chrome need to show a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "cat", "id", "ph", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ph", "bp", "ts", "pid", "tid"},
}


class Trace:
    """The events of a file: ``slices``, and ``arrows`` from one slice to another. Raises AssertionError for what breaks a rule."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text(encoding="utf-8"))
        events = content["traceEvents"]
        for event in events:
            assert set(event) == _KEYS[event["ph"]], event
        self.slices = [e for e in events if e["ph"] == "X"]
        names = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
        assert {(e["pid"], e["tid"]) for e in self.slices} <= names
        self.processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self._check_nesting()
        starts = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        assert len(starts) == len(ends) == sum(e["ph"] in "sf" for e in events) / 2 and starts.keys() == ends.keys()
        self.arrows = [(self.around(starts[k]), self.around(ends[k])) for k in starts]

    def _check_nesting(self) -> None:
        """Slices of a thread lie within each other or apart."""
        rows: dict[Any, list[Any]] = {}
        for e in sorted(self.slices, key=lambda e: (e["ts"], -e["dur"])):
            assert e["ts"] >= 0 and e["dur"] >= 0, e
            stack = rows.setdefault((e["pid"], e["tid"]), [])
            while stack and stack[-1] <= e["ts"]:
                stack.pop()
            assert not stack or e["ts"] + e["dur"] <= stack[-1] + 1e-3, e  # a nanosecond is less than a digit
            stack.append(e["ts"] + e["dur"])

    def around(self, point: dict[str, Any]) -> dict[str, Any]:
        """The innermost slice that an end of an arrow is bound to."""
        found = [
            e for e in self.slices
            if (e["pid"], e["tid"]) == (point["pid"], point["tid"]) and e["ts"] <= point["ts"] <= e["ts"] + e["dur"]
        ]  # fmt: skip
        assert found, point
        return max(found, key=lambda e: e["ts"])
