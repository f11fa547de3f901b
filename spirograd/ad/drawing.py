"""The drawing of a program that a tape has recorded, as SVG.

Each step (equal launches of a kernel) is a row, and each memory a vertical line. A circle on a line is a read, a disc a write, a disc with
a ring both. Lines of memory without a gradient are dashed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from spirograd.ad.memory_keys import Key
from spirograd.ad.memory_report import MemoryReport
from spirograd.ad.program_outline import MemoryUse, ProgramOutline, StepUse
from spirograd.base.wording import counted

_ROW, _COLUMN, _LETTER = 46, 34, 7.2  # heights of rows, distances of lines, widths of letters, in pixels
_SLANT = 0.6  # how much a heading rises for each pixel to the right
_STYLE = (
    "text{font:12px monospace;fill:#222}.small{font-size:10px;fill:#666}.box{fill:#eef3fb;stroke:#3465a4}.plain{fill:#f5f5f5;stroke:#999}"
    ".line{stroke:#3465a4}.none{stroke:#999;stroke-dasharray:3 3}.read{fill:#fff;stroke:#3465a4;stroke-width:2}.write{fill:#3465a4}"
    ".ring{fill:none;stroke:#3465a4}.saved{fill:#a40000}"
)


class TapeDrawing:
    """A drawing, which notebooks show. ``svg``: its text."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the drawing to a file."""
        Path(file).write_text(self.svg, encoding="utf-8")


def drawing(outline: ProgramOutline, report: MemoryReport, times: Mapping[str, float]) -> TapeDrawing:
    """Return the drawing of a program. ``report``: what its tape saves; ``times``: see `average_times`."""
    steps, memories = outline.steps, list(outline.memories.items())
    texts = [_texts(step, times) for step in steps]
    left = 30 + _LETTER * max([len(text) for pair in texts for text in pair], default=10)
    headings = [_headings(memory, report) for _, memory in memories]
    widest = _LETTER * max([len(text) for pair in headings for text in pair], default=0)
    top = 40 + _SLANT * widest
    lines = {key: left + 24 + _COLUMN * k for k, (key, _) in enumerate(memories)}
    width, height = left + 60 + _COLUMN * len(memories) + widest, top + _ROW * len(steps) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="10" y="20">{escape(str(report).splitlines()[0])}</text>',
    ]
    for (key, memory), texts_above in zip(memories, headings):
        parts += _line(lines[key], top, height, memory, texts_above)
    for k, (step, texts_beside) in enumerate(zip(steps, texts)):
        parts += _row(top + _ROW * k, left, step, texts_beside, lines)
    return TapeDrawing("\n".join([*parts, "</svg>"]))


def _texts(step: StepUse, times: Mapping[str, float]) -> tuple[str, str]:
    """Return the two lines in the box of a step."""
    if not step.kernel:
        return f"Python writes  x {step.count:,}", ""
    took = [f"{times[name]:.3g} ms{what}" for name, what in ((step.kernel, ""), (f"{step.kernel}_grad", " its gradient")) if name in times]
    place = f"{Path(step.loc.file).name}:{step.loc.line}" if step.loc is not None else ""
    return f"{step.kernel}  x {step.count:,}", ", ".join([text for text in (place, *took) if text])


def _headings(memory: MemoryUse, report: MemoryReport) -> tuple[str, str]:
    """Return the two lines above a memory."""
    copies, nbytes = report.items.get(memory.name, (0, 0))
    saved = f"{counted(nbytes, 'byte')} saved in {counted(copies, 'copy', 'copies')}" if copies else ""
    return f"{memory.name}  {counted(memory.nbytes, 'byte')}", saved


def _line(x: float, top: float, height: float, memory: MemoryUse, texts: tuple[str, str]) -> list[str]:
    kind = "line" if memory.has_grad else "none"
    turned = f'transform="translate({x:.1f} {top - 14:.1f}) rotate(-31)"'
    return [
        f'<line x1="{x:.1f}" y1="{top - 10:.1f}" x2="{x:.1f}" y2="{height - 10:.1f}" class="{kind}"/>',
        f'<text {turned}>{escape(texts[0])}<tspan x="8" dy="12" class="small saved">{escape(texts[1])}</tspan></text>',
    ]


def _row(y: float, left: float, step: StepUse, texts: tuple[str, str], lines: Mapping[Key, float]) -> list[str]:
    kind, middle = "box" if step.acts else "plain", y + _ROW / 2 - 6
    used = [lines[key] for key in (*step.reads, *step.writes)]
    parts = [f'<line x1="{left:.1f}" y1="{middle:.1f}" x2="{max(used):.1f}" y2="{middle:.1f}" class="none"/>'] if used else []
    parts += [
        f'<rect x="10" y="{y:.1f}" width="{left - 10:.1f}" height="{_ROW - 12}" rx="4" class="{kind}"/>',
        f'<text x="18" y="{y + 14:.1f}">{escape(texts[0])}<tspan x="18" dy="14" class="small">{escape(texts[1])}</tspan></text>',
    ]
    parts += [_mark(lines[key], middle, 5, "write") for key in step.writes]
    both = set(step.reads) & set(step.writes)
    parts += [_mark(lines[key], middle, 8 if key in both else 5, "ring" if key in both else "read") for key in _once(step.reads)]
    return parts


def _mark(x: float, y: float, radius: int, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{kind}"/>'


def _once(keys: Sequence[Key]) -> list[Key]:
    return list(dict.fromkeys(keys))
