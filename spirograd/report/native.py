"""Listings of LLVM IR, and of the assembly or PTX that LLVM compiles it to, with the Python line of each of their lines.

The emitter's text has source lines in comments (``; file:line``), which LLVM's parser drops. The text is therefore compiled again, with
debug locations in place of these comments. Debug locations should not affect the optimiser; if the result differs nevertheless, the stage
is shown without source lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.base.targets import Generator
from spirograd.llvmgen.translate import ASSEMBLY, translate
from spirograd.report.places import Listing, Place

_COMMENT = re.compile(r"  ; (.+):(\d+)$")
_DEFINE = re.compile(r"define .*@([^\s(]+)\(.*\{$")
_NODE = re.compile(r"^!(\d+) = (.*)$")
_DEBUG = re.compile(r", !dbg !(\d+)")
_LOC = re.compile(r"\s*\.loc\s+(\d+) (\d+)")
_UNMAPPED = "This stage comes out differently with debug locations, so its lines cannot be mapped."


def listings(stages: dict[str, str], caps: Capabilities, options: CompileOptions) -> dict[str, Listing]:
    """Return the stages of a kernel that LLVM compiles: ``kernel.ll``, ``kernel.opt.ll``, and its assembly."""
    text = stages["kernel.ll"]
    lines = text.splitlines()
    places = source_places(lines)
    files = list(dict.fromkeys(place[0] for place in places if place is not None))
    code = translate(with_debug_locations(lines, places, files), caps, replace(options, keep_stages=True))
    generator = caps.target.generator
    name = ASSEMBLY[generator]
    return {
        "kernel.ll": Listing(lines, places),
        "kernel.opt.ll": _aligned(stages["kernel.opt.ll"], *_optimized(code.optimized_ir, files), _ir_form),
        name: _aligned(stages[name], *_assembly(code.assembly, files), _FORMS[generator]),
    }


def source_places(lines: list[str]) -> list[Place | None]:
    """Return the source line of each line of the emitter's LLVM IR, from the last comment in its function."""
    places: list[Place | None] = []
    here: Place | None = None
    for line in lines:
        comment = _COMMENT.match(line)
        if comment:
            here = (comment[1], int(comment[2]))
        elif line.startswith(("define ", "}")):
            here = None
        places.append(here if line.startswith("  ") else None)
    return places


# --- debug locations in -----------------------------------------------------------------------------------------------------


def with_debug_locations(lines: list[str], places: list[Place | None], files: list[str]) -> str:
    """Return the module ``lines`` with a debug location on every instruction. Files are given as their numbers in ``files``, from 0."""
    base = 1 + max((int(match[1]) for line in lines if (match := _NODE.match(line))), default=-1)
    nodes = _Nodes(base, len(files))
    out: list[str] = []
    scope = -1
    for line, place in zip(lines, places):
        if _DEFINE.match(line):
            scope = nodes.function()
            line = f"{line[:-1]}!dbg !{scope} {{"
        elif scope >= 0 and line.startswith("  ") and not line.startswith("  ;"):
            line += f", !dbg !{nodes.location(scope, files.index(place[0]), place[1]) if place else nodes.location(scope, -1, 0)}"
        elif line == "}":
            scope = -1
        out.append(line)
    return "\n".join([*out, *nodes.text()]) + "\n"


class _Nodes:
    """The metadata of debug locations, numbered from ``base``: a DIFile for each file, after that of the unit."""

    def __init__(self, base: int, files: int) -> None:
        self._base = base
        self._file = base + 2
        self._bodies = [
            f"distinct !DICompileUnit(language: DW_LANG_C99, file: !{self._file}, isOptimized: true, emissionKind: LineTablesOnly)",
            "!DISubroutineType(types: !{null})",
            *[f'!DIFile(filename: "f{k}", directory: "")' for k in range(-1, files)],
        ]
        self._found: dict[tuple[int, ...], int] = {}

    def _add(self, body: str) -> int:
        self._bodies.append(body)
        return self._base + len(self._bodies) - 1

    def function(self) -> int:
        name = f"t{len(self._bodies)}"
        return self._add(
            f'distinct !DISubprogram(name: "{name}", scope: !{self._file}, file: !{self._file}, type: !{self._base + 1}, '
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{self._base})"
        )

    def location(self, function: int, file: int, line: int) -> int:
        """Return a location in ``file`` (-1: nowhere, line 0) of the code of ``function``."""
        scope = self._intern((function, file), f"!DILexicalBlockFile(scope: !{function}, file: !{self._file + 1 + file}, discriminator: 0)")
        return self._intern((function, file, line), f"!DILocation(line: {line}, scope: !{scope})")

    def _intern(self, key: tuple[int, ...], body: str) -> int:
        number = self._found.get(key)
        if number is None:
            number = self._found[key] = self._add(body)
        return number

    def text(self) -> list[str]:
        last = self._base + len(self._bodies)
        return [
            *[f"!{self._base + k} = {body}" for k, body in enumerate(self._bodies)],
            f'!{last} = !{{i32 2, !"Debug Info Version", i32 3}}',
            f"!llvm.dbg.cu = !{{!{self._base}}}",
            f"!llvm.module.flags = !{{!{last}}}",
        ]


# --- and out ------------------------------------------------------------------------------------------------------------------


def _place(files: list[str], number: int, line: int) -> Place | None:
    return (files[number], line) if line and 0 <= number < len(files) else None


def _optimized(text: str, files: list[str]) -> tuple[list[str], list[Place | None]]:
    """Return the lines of optimised IR, with their source lines from ``!dbg``."""
    lines = text.splitlines()
    nodes = {int(match[1]): match[2] for line in lines if (match := _NODE.match(line))}

    def refer(body: str, key: str) -> str:
        match = re.search(rf"\b{key}: !(\d+)", body)
        return nodes.get(int(match[1]), "") if match else ""

    def place(line: str) -> Place | None:
        match = _DEBUG.search(line)
        body = nodes.get(int(match[1]), "") if match else ""
        number = re.search(r'filename: "f(-?\d+)"', refer(refer(body, "scope"), "file"))
        at = re.search(r"\bline: (\d+)", body)
        return _place(files, int(number[1]), int(at[1])) if number and at else None

    return lines, [place(line) if line.startswith("  ") else None for line in lines]


def _assembly(text: str, files: list[str]) -> tuple[list[str], list[Place | None]]:
    """Return the lines of assembly, with their source lines from ``.loc``."""
    lines = text.splitlines()
    numbers = {int(match[1]): int(match[2]) for line in lines if (match := re.match(r'\s*\.file\s+(\d+)\s.*["/]f(-?\d+)"', line))}
    places: list[Place | None] = []
    here: Place | None = None
    for line in lines:
        loc = _LOC.match(line)
        if loc:
            here = _place(files, numbers.get(int(loc[1]), -1), int(loc[2]))
        elif re.match(r"\.Lfunc_(begin|end)|\s*\.(section|text)", line):
            here = None
        places.append(here)
    return lines, places


def _ir_form(line: str) -> str | None:
    """Return an instruction of LLVM IR without the numbers of metadata and attributes; None for other lines."""
    return re.sub(r"(, !\w[\w.]* !\d+)+| #\d+", "", line) if line.startswith("  ") and not line.startswith("  ;") else None


def _assembly_form(line: str) -> str | None:
    """Return an instruction of assembly without its comment; None for labels and directives."""
    line = line.split("#")[0].strip()
    return None if not line or line.startswith(".") or line.endswith(":") else line


def _ptx_form(line: str) -> str | None:
    """Return an instruction of PTX; None for labels, directives and debug sections."""
    line = line.strip()
    return line if line.endswith(";") and not line.startswith(".") else None


def _gcn_form(line: str) -> str | None:
    """Return an instruction of AMD's assembly; None for other lines."""
    return _assembly_form(line.split(";")[0])


_FORMS = {Generator.LLVM: _assembly_form, Generator.PTX: _ptx_form, Generator.CODE_OBJECT: _gcn_form}


def _aligned(real: str, lines: list[str], places: list[Place | None], form: Callable[[str], str | None]) -> Listing:
    """Return the ``real`` text of a stage with the source lines of the same instructions in ``lines``."""
    shown = real.splitlines()
    located = [(key, place) for line, place in zip(lines, places) if (key := form(line)) is not None]
    keys = [form(line) for line in shown]
    if [key for key in keys if key is not None] != [key for key, _ in located]:
        return Listing(shown, [None] * len(shown), _UNMAPPED)
    following = iter(place for _, place in located)
    return Listing(shown, [None if key is None else next(following) for key in keys])
