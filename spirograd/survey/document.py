"""The page of a survey: that of `spirograd dump`, with a table of the devices and their machine code for each kernel."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.dumps import Compilation
from spirograd.report.document import UNMAPPED, document
from spirograd.report.page import Document
from spirograd.survey.collecting import Source
from spirograd.survey.results import Result, Survey
from spirograd.survey.surveying import labels


def survey_document(compilations: Sequence[Compilation], sources: Sequence[Source], survey: Survey, title: str) -> Document:
    """Return the document of the page. ``compilations``: what the script compiled, for the back end that ran it."""
    content = document(compilations, title)
    names = {id(source.kernel): name for source, name in zip(sources, labels(sources))}
    for compilation, entry in zip(compilations, content["kernels"]):
        name = names.get(id(compilation.kernel), compilation.kernel.name)
        results = [result for result in survey.results if result.kernel == name]
        stages = entry["stages"]
        assert isinstance(stages, list)
        entry["stages"] = [*stages, *[_stage(result) for result in results if result.build.code]]
        entry["survey"] = [_row(result) for result in results]
    return content


def _stage(result: Result) -> dict[str, object]:
    lines = result.build.code.expandtabs(4).splitlines()
    language = "msl" if result.device == "metal" else "asm"
    return {
        "title": result.device,
        "language": language,
        "task": result.task,
        "lines": lines,
        "places": [-1] * len(lines),
        "note": UNMAPPED,
        "also": {},
    }


def _row(result: Result) -> list[object]:
    build, usage = result.build, result.build.usage
    numbers = (usage.registers, usage.spills, usage.instructions, usage.occupancy or None)
    time = "" if build.seconds is None else f"{1000 * build.seconds:.1f}"
    outcome = build.outcome + (f": {build.reason.splitlines()[0]}" if build.reason else "")
    return [result.device, result.task, outcome, *["" if number is None else number for number in numbers], time]
