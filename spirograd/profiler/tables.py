"""Profiles as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from spirograd.base.spans import Span
from spirograd.profiler.totals import TaskTotals, by_task
from spirograd.runtime.profiling import TaskKey, TaskRecord

# Sort keys of tables, largest first; "name" in ascending order.
SORTS: dict[str, Callable[[TaskTotals], float]] = {
    "time": lambda t: t.time,
    "count": lambda t: t.count,
    "avg": lambda t: t.time / t.count,
    "max": lambda t: t.longest,
    "bytes": lambda t: t.bandwidth,
    "operations": lambda t: t.rate,
}
_HEAD = ("%", "total ms", "count", "min ms", "avg ms", "max ms")


def place(key: TaskKey) -> str:
    """Return the source line of a task, as `file.py:12`; "" if it has none."""
    return "" if key.loc is None else f"{Path(key.loc.file).name}:{key.loc.line}"


def counts(records: Iterable[TaskRecord], sort: str = "time", copy: float = 0.0) -> str:
    """Return a line for each task: its share of the time, its runs, and its rates. ``copy``: the copy bandwidth of the device in bytes per
    second."""
    totals = by_task(records)
    totals.sort(key=SORTS[sort], reverse=True)
    total_time = sum(t.time for t in totals)
    several = len({t.key.arch for t in totals}) > 1
    cpu = any(t.cpu >= 0 for t in totals)
    head = [*_HEAD, "GB/s", *(["of copy"] if copy else []), "GFLOP/s", *(["cpu ms"] if cpu else [])]
    rows = [_row(t, total_time, copy, cpu) for t in totals]
    names = [_label(t.key, several) for t in totals]
    lines = _aligned(head, rows, ["task", *names])
    total = f"{total_time / 1e6:.3f} ms in {sum(t.count for t in totals)} runs of {len(totals)} tasks"
    return "\n".join([*lines, total])


def _row(t: TaskTotals, total_time: int, copy: float, cpu: bool) -> list[str]:
    times = [t.time, t.shortest, t.time / t.count, t.longest]
    total, shortest, average, longest = (f"{time / 1e6:.3f}" for time in times)
    least = "" if t.exact else ">"
    share = [f"{least}{t.bandwidth / copy:.0%}" if t.bandwidth else "-"] if copy else []
    return [
        f"{t.time / total_time:.1%}" if total_time else "-",
        total,
        str(t.count),
        shortest,
        average,
        longest,
        f"{least}{t.bandwidth / 1e9:.2f}" if t.bandwidth else "-",
        *share,
        f"{least}{t.rate / 1e9:.2f}" if t.rate else "-",
        *([f"{t.cpu / 1e6:.3f}" if t.cpu >= 0 else "-"] if cpu else []),
    ]


def _label(key: TaskKey, arch: bool) -> str:
    words = [
        key.name,
        *(["(serial)"] if key.kind == "serial" and key.name != key.kernel else []),
        place(key),
        *([key.arch] if arch else []),
    ]
    return " ".join(word for word in words if word)


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Format columns aligned to the right, and one of names."""
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    cells = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in (head, *rows)]
    lines = [f"{line}  {name}" for line, name in zip(cells, names)]
    return [lines[0], "-" * max(len(line) for line in lines), *lines[1:]]


def runs(records: Sequence[TaskRecord], dropped: int = 0) -> str:
    """Return a line for each run of a task: when it began, relative to the first one, and how long it took."""
    first = min((record.begin for record in records), default=0)
    rows = [[f"{(r.begin - first) / 1e6:.3f}", f"{r.duration / 1e6:.3f}"] for r in records]
    lines = _aligned(["start ms", "took ms"], rows, ["task", *(_label(r.key, False) for r in records)])
    more = f", and {dropped} more that were not kept" if dropped else ""
    return "\n".join([*lines, f"{len(records)} runs{more}"])


def scopes(spans: Iterable[Span]) -> str:
    """Return spans of the host as a tree: the number of entries within the same outer spans, and the total time."""
    root = _Scope("")
    open_spans: dict[int, list[tuple[_Scope, Span]]] = {}
    for span in sorted(spans, key=lambda s: (s.thread, s.begin, -s.end)):
        stack = open_spans.setdefault(span.thread, [])
        while stack and (stack[-1][1].depth >= span.depth or stack[-1][1].end < span.end):
            stack.pop()
        parent = stack[-1][0] if stack else root
        scope = parent.inner.setdefault(span.name, _Scope(span.name))
        scope.count += 1
        scope.time += span.end - span.begin
        stack.append((scope, span))
    return "\n".join(_tree(root, 0)) or "no scopes"


class _Scope:
    def __init__(self, name: str) -> None:
        self.name = name
        self.count = self.time = 0
        self.inner: dict[str, _Scope] = {}


def _tree(scope: _Scope, level: int) -> list[str]:
    lines = []
    for inner in sorted(scope.inner.values(), key=lambda s: -s.time):
        lines.append(f"{inner.time / 1e6:10.3f} ms  {inner.count:5} x  {'    ' * level}{inner.name}")
        lines += _tree(inner, level + 1)
    return lines
