"""The data of a page: a JSON document with the kernels that a program compiled."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spirograd.base.records import replace
from spirograd.base.targets import Generator
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation
from spirograd.report import native, shaders
from spirograd.report.facts import block_rows, dispatch, signature
from spirograd.report.page import Document
from spirograd.report.places import Listing, Place, Places
from spirograd.report.sources import Source, sources_of
from spirograd.spirvgen.disasm import capabilities

# Titles of the stages of IR.
_IR = {
    "kernel.ir": "IR: kernel",
    "offload.ir": "IR: offloaded",
    "device.ir": "IR: device",
    "vectors.ir": "IR: vectors",
    "loops.ir": "IR: loops",
}
_NATIVE = {
    "kernel.ll": ("LLVM", "llvm"),
    "kernel.opt.ll": ("LLVM optimised", "llvm"),
    "kernel.s": ("assembly", "asm"),
    "kernel.ptx": ("PTX", "asm"),
}
UNMAPPED = "The driver maps no lines of what it shows."


def document(compilations: Sequence[Compilation], title: str) -> Document:
    """Return the document of a page. Each kernel is compiled again, without recording stages, to measure the time."""
    return {"title": title, "kernels": [kernel_entry(c) for c in compilations]}


def merged(documents: Sequence[Document]) -> Document:
    """Merge documents into one with all kernels and the title of the first."""
    return {"title": documents[0]["title"], "kernels": [kernel for one in documents for kernel in one["kernels"]]}


def kernel_entry(c: Compilation) -> dict[str, object]:
    """Return the entry of one kernel."""
    compiled, places = c.compiled, Places()
    start = time.perf_counter()
    compile_kernel(c.kernel, c.caps, replace(c.options, keep_stages=False))
    seconds = time.perf_counter() - start
    stages = _ir_stages(c, places)
    if compiled.target.generator is Generator.SPIRV:
        stages += _shader_stages(c, places)
        stages += _driver_stages(c, places)
    elif compiled.target.generator is not Generator.INTERPRETER:
        texts = {name: content for name, content in compiled.stages.items() if isinstance(content, str)}
        for name, listing in native.listings(texts, c.caps, c.options).items():
            stages.append(_stage(*_NATIVE[name], "", listing, places))
        stages += _driver_stages(c, places)
    return {
        "name": compiled.name,
        "signature": signature(c.kernel),
        "arch": c.arch,
        "target": compiled.target_name,
        "key": compiled.key,
        "seconds": seconds,
        "cpu": c.caps.cpu_name,
        "block": {"size": compiled.args.size, "slots": block_rows(compiled, c.kernel)},
        "temps": compiled.temps_size,
        "tasks": _tasks(c),
        "stages": [_python(c, places), *stages],
        "places": [list(place) for place in places.all],
    }


def _stage(title: str, language: str, task: str, listing: Listing, places: Places) -> dict[str, object]:
    numbers = places.numbers(listing.places)
    entry = {"title": title, "language": language, "task": task, "lines": listing.lines, "places": numbers, "note": listing.note}
    return entry | {"also": {k: places.numbers(more) for k, more in listing.also.items()}}


def _ir_stages(c: Compilation, places: Places) -> list[dict[str, object]]:
    stages = []
    for name, locs in c.compiled.stage_locs.items():
        text = c.compiled.stages[name]
        assert isinstance(text, str)
        found = [None if loc is None else (loc.file, loc.line) for loc in locs]
        stages.append(_stage(_IR[name], "ir", "", Listing(text.splitlines(), found), places))
    return stages


def _shader_stages(c: Compilation, places: Places) -> list[dict[str, object]]:
    stages = []
    for title, language, read in (("SPIR-V", "spirv", shaders.disassembly), ("MSL", "msl", shaders.metal)):
        for task in c.compiled.tasks:
            stages.append(_stage(title, language, task.name, read(c.compiled.binaries[task.binary]), places))
    return stages


def _driver_stages(c: Compilation, places: Places) -> list[dict[str, object]]:
    """Return what the driver of a GPU tells (`ShowsMachineCode`): resources, and listings of the kernel and of each task."""
    titles = {name: (title, "") for name, title in (("kernel.usage", "resources"), ("kernel.sass", "machine code"))}
    for task in c.compiled.tasks:
        for name in c.compiled.stages:
            if name == f"{task.name}.s":
                titles[name] = ("machine code", task.name)
            elif name.startswith(f"{task.name}.") and name.endswith(".txt"):
                titles[name] = (name[len(task.name) + 1 : -len(".txt")], task.name)
    stages = []
    for name, (title, label) in titles.items():
        text = c.compiled.stages.get(name)
        if isinstance(text, str):
            lines = text.expandtabs(4).splitlines()
            stages.append(_stage(title, "asm", label, Listing(lines, [None] * len(lines), UNMAPPED), places))
    return stages


def _tasks(c: Compilation) -> list[dict[str, object]]:
    compiled = c.compiled
    rows = []
    for task in compiled.tasks:
        row: dict[str, object] = {"name": task.name, "kind": task.kind, "size": 0, "capabilities": []}
        row |= dispatch(task, c.kernel, compiled.target, c.caps.max_groups)
        if compiled.binaries:
            row["size"] = len(compiled.binaries[task.binary])
        if compiled.target.generator is Generator.SPIRV:
            row["capabilities"] = capabilities(compiled.binaries[task.binary])
        rows.append(row)
    return rows


def _python(c: Compilation, places: Places) -> dict[str, object]:
    """Return the Python source as a stage; ``numbers`` are the line numbers in the files, 0 for headings."""
    calls = {(loc.file, loc.line) for locs in c.compiled.stage_locs.values() for outer in locs if outer for loc in outer.chain()}
    known = set(places.all)
    lines: list[str] = []
    lines_of: list[Place | None] = []
    numbers: list[int] = []
    for source in sources_of(c.kernel.loc, known | calls):
        lines += ["", _heading(source)] if lines else [_heading(source)]
        numbers += [0] * (len(lines) - len(numbers))
        lines_of += [None] * (len(lines) - len(lines_of))
        for number, line in enumerate(source.lines, source.first):
            lines.append(line)
            numbers.append(number)
            lines_of.append(place if (place := (source.file, number)) in known else None)
    stage = _stage("Python", "python", "", Listing(lines, lines_of), places)
    return stage | {"numbers": numbers}


def _heading(source: Source) -> str:
    return f"# {source.file}" + (f": {source.name}" if source.name else "")
