"""A survey as text: for each kernel, a table of the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from spirograd.base.wording import counted
from spirograd.survey.results import COMPILES, CRASHED, FAILED, REFUSED, Result, Survey

HEAD = ("device", "compiles", "registers", "spills", "instructions", "occupancy", "ms", "reason")
# The outcome of a kernel is that of its task whose outcome comes first.
_WORST = (CRASHED, FAILED, REFUSED, COMPILES)
Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]


def text(survey: Survey, table: Table, by_task: bool = False) -> str:
    """Return the tables, what is missing, and a summary. ``by_task``: a row for each task, not for each kernel."""
    parts = []
    for (_, kernel, task), results in _grouped(survey.results, by_task).items():
        place = next((result.place for result in results if result.place), "")
        title = " ".join(filter(None, (kernel, f"task {task}" if task else "", place)))
        parts.append(f"{title}\n{table(HEAD, _rows(results))}")
    if survey.devices:
        parts.append("Devices\n" + table(("device", "driver"), list(survey.devices.items())))
    if survey.missing:
        parts.append("Devices that are missing here\n" + table(("device", "reason"), [(k, _line(v)) for k, v in survey.missing.items()]))
    return "\n\n".join([*parts, summary(survey)])


def failure(result: Result) -> str:
    """Return a line that says what is wrong with a task on a device."""
    build = result.build
    problem = counted(build.usage.spills or 0, "spill") if build.outcome == COMPILES else f"{build.outcome}: {_line(build.reason)}"
    return f"  {result.kernel}{f', {result.task}' if result.task else ''}, on {result.device}: {problem}{_place(result)}"


def summary(survey: Survey) -> str:
    """Return the numbers of kernels, devices and outcomes in one sentence."""
    kernels = len({(result.source, result.kernel) for result in survey.results})
    outcomes = [result.build.outcome for result in survey.results]
    counts = [f"{n} {one if n == 1 else more}" for outcome, (one, more) in _COUNTED.items() if (n := outcomes.count(outcome))]
    spilling = sum(1 for result in survey.results if result.build.usage.spills)
    counts += [f"{spilling} with spills"] if spilling else []
    return (
        f"{counted(kernels, 'kernel')} on {counted(len(survey.devices), 'device')}; of their tasks, {', '.join(counts) or 'none compiled'}"
    )


# What one task does, and what several do.
_COUNTED = {
    COMPILES: ("compiles", "compile"),
    REFUSED: ("is refused", "are refused"),
    FAILED: ("fails", "fail"),
    CRASHED: ("crashes the compiler", "crash the compiler"),
}


def _grouped(results: Iterable[Result], by_task: bool) -> dict[tuple[int, str, str], list[Result]]:
    """Return the results by source, kernel and, if asked for, task, in the order of the program."""
    groups: dict[tuple[int, str, str], list[Result]] = {}
    for result in sorted(results, key=lambda result: result.source):
        groups.setdefault((result.source, result.kernel, result.task if by_task else ""), []).append(result)
    return groups


def _rows(results: Iterable[Result]) -> list[tuple[str, ...]]:
    by_device: dict[str, list[Result]] = {}
    for result in results:
        by_device.setdefault(result.device, []).append(result)
    return [(device, *_cells(tasks)) for device, tasks in by_device.items()]


def _cells(tasks: Sequence[Result]) -> tuple[str, ...]:
    """Return the cells of the tasks of a kernel: the most registers, the lowest occupancy, and the sums of all else."""
    worst = min(tasks, key=lambda result: _WORST.index(result.build.outcome))
    if worst.build.outcome != COMPILES:
        return (worst.build.outcome, *["-"] * len(HEAD[2:-1]), _line(worst.build.reason) + _place(worst))
    usages = [result.build.usage for result in tasks]
    seconds = [result.build.seconds for result in tasks if result.build.seconds is not None]
    occupancy = min([usage.occupancy for usage in usages if usage.occupancy], key=lambda told: int(told.split()[0]), default="-")
    return (
        "yes",
        _number(max, [usage.registers for usage in usages]),
        _number(sum, [usage.spills for usage in usages]),
        _number(sum, [usage.instructions for usage in usages]),
        occupancy,
        f"{1000 * sum(seconds):.1f}" if seconds else "-",
        "",
    )


def _number(combine: Callable[[list[int]], int], values: Iterable[int | None]) -> str:
    told = [value for value in values if value is not None]
    return str(combine(told)) if told else "-"


def _place(result: Result) -> str:
    return "" if result.loc is None else f" ({Path(result.loc.file).name}:{result.loc.line})"


def _line(message: str) -> str:
    return message.splitlines()[0] if message else ""
