"""Traces in the Trace Event Format, which Perfetto (https://ui.perfetto.dev) and Chrome (chrome://tracing) show."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from spirograd.base.spans import Span
from spirograd.runtime.profiling import HostRecord, TaskRecord

_HOST, _DEVICES = 1, 2  # numbers of the processes of a trace: the host, then one for each back end
_THREADS = 1000  # the first row of threads, behind those of tasks
Event = dict[str, object]


def write(path: str | os.PathLike[str], begin: int, spans: Sequence[Span], host: Sequence[HostRecord], tasks: Sequence[TaskRecord]) -> None:
    """Write everything after ``begin`` to ``path``. Times are nanoseconds of one clock."""
    events = [*_host_events(begin, spans, host), *_device_events(begin, host, tasks)]
    content = {"displayTimeUnit": "ns", "traceEvents": events}
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def _slice(name: str, category: str, begin: int, end: int, pid: int, tid: int, args: Event) -> Event:
    """Return an event from ``begin`` to ``end`` in ns; the format has microseconds."""
    times = {"ts": begin / 1e3, "dur": max(end - begin, 0) / 1e3}
    return {"name": name, "cat": category, "ph": "X", **times, "pid": pid, "tid": tid, "args": args}


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _host_events(begin: int, spans: Sequence[Span], host: Sequence[HostRecord]) -> list[Event]:
    events = [_named("process_name", _HOST, 0, "host")]
    threads = dict.fromkeys([s.thread for s in spans] + [r.thread for r in host])
    events += [_named("thread_name", _HOST, thread, f"thread {thread}") for thread in threads]
    for s in spans:
        if s.begin >= begin:
            events.append(_slice(s.name, s.category, s.begin - begin, s.end - begin, _HOST, s.thread, dict(s.details)))
    for r in host:
        name = f"launch {r.name}" if r.category == "launch" else r.name
        args: Event = {"bytes": r.nbytes} if r.category == "transfer" else {"launch": r.launch}
        events.append(_slice(name, r.category, r.begin - begin, r.end - begin, _HOST, r.thread, args))
    return events


def _device_events(begin: int, host: Sequence[HostRecord], tasks: Sequence[TaskRecord]) -> list[Event]:
    """Return the events of the tasks of each back end, each in a row in which nothing else runs at the time, with an arrow from its
    launch."""
    events: list[Event] = []
    launches = {(r.arch, r.launch): r for r in host if r.category == "launch"}
    devices: dict[str, list[int]] = {}  # the time until which each row is occupied
    for number, task in enumerate(sorted(tasks, key=lambda t: t.begin)):
        rows = devices.setdefault(task.key.arch, [])
        row = next((k for k, end in enumerate(rows) if end <= task.begin), len(rows))
        pid, tid = _DEVICES + list(devices).index(task.key.arch), row + 1
        if row == len(rows):
            rows.append(0)
            events += [_named("process_name", pid, 0, task.key.arch)] * (row == 0)
            events.append(_named("thread_name", pid, tid, f"tasks {tid}"))
        rows[row] = task.end
        events.append(_slice(task.key.name, "task", task.begin - begin, task.end - begin, pid, tid, _details(task)))
        launch = launches.get((task.key.arch, task.launch))
        if launch is not None:
            flow = {"name": "launch", "cat": "launch", "id": number + 1}
            events.append({**flow, "ph": "s", "ts": (launch.begin - begin) / 1e3, "pid": _HOST, "tid": launch.thread})
            events.append({**flow, "ph": "f", "bp": "e", "ts": (task.begin - begin) / 1e3, "pid": pid, "tid": tid})
    for k, arch in enumerate(devices):
        events += _thread_events(begin, _DEVICES + k, [task for task in tasks if task.key.arch == arch])
    return events


def _thread_events(begin: int, pid: int, tasks: Sequence[TaskRecord]) -> list[Event]:
    """Return the events of each thread of CPU tasks."""
    events: list[Event] = []
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    rows: dict[int, int] = {}
    for task in tasks:
        for chunk in task.chunks:
            row = rows.get(chunk.thread)
            if row is None:
                row = rows[chunk.thread] = _THREADS + len(rows)
                events.append(_named("thread_name", pid, row, names.get(chunk.thread, f"thread {chunk.thread}")))
            args = {"kernel": task.key.kernel, "launch": task.launch, "first": chunk.low, "iterations": chunk.high - chunk.low}
            events.append(_slice(task.key.name, "chunk", chunk.begin - begin, chunk.end - begin, pid, row, args))
    return events


def _details(task: TaskRecord) -> Event:
    """Return the details of a run of a task."""
    details: Event = {"kernel": task.key.kernel, "launch": task.launch}
    if task.key.loc is not None:
        details["source"] = str(task.key.loc)
    if task.iterations is not None:
        details["iterations"] = task.iterations
    if task.nbytes is not None:
        details["bytes"], details["operations"], details["exact"] = task.nbytes, task.operations, task.exact
    if task.cpu >= 0:
        details["cpu_us"] = task.cpu / 1e3
    return details
