"""Programs whose kernels the tests survey, and how they collect them."""

from __future__ import annotations

from pathlib import Path

import spirograd as sg
from spirograd.commands.scripts import run_script
from spirograd.survey.collecting import Source, collecting

# Lines: 9 `run`, 15 `double`, 17 its second loop.
PROGRAM = """\
import spirograd as sg

sg.init(arch=sg.vulkan)
x, y = (sg.field(sg.f32, shape=8, needs_grad=True) for _ in range(2))
a = sg.field(sg.f64, shape=8)
number = sg.field(sg.i32, shape=8)

@sg.kernel
def run():
    for i in x:
        v = x[i]
        for _ in range(number[i]):
            v = sg.sin(v)
        y[i] = v
@sg.kernel
def double(s: sg.f64):
    for i in a:
        a[i] = a[i] * s
    for i in a:
        a[i] = a[7 - i] + s

run()
run.grad()
double(3.0)
"""


def sources(folder: Path, program: str = PROGRAM) -> list[Source]:
    """Return what a program compiles on the CPU. Its fields are gone."""
    path = folder / "program.py"
    path.write_text(program)
    with collecting() as collector:
        assert run_script(path, [], "cpu") == 0
    sg.reset()
    return collector.sources()
