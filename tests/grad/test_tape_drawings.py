"""`Tape.show` draws the program that a tape has recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu
N, STEPS = 100, 20
SVG = "{http://www.w3.org/2000/svg}"


def program() -> tuple[Any, Any]:
    """Return a loss, and a program with memory of all kinds."""
    x, v, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))
    mass, u = sg.field(sg.f32, N), sg.ndarray(sg.f32, N, needs_grad=True)

    @sg.kernel
    def push(dt: sg.f32):
        for i in x:
            v[i] -= dt * sg.sin(x[i]) * mass[i]

    @sg.kernel
    def move(dt: sg.f32):
        for i in x:
            x[i] += dt * v[i]

    @sg.kernel
    def measure(w: sg.types.NDArray):
        for i in x:
            loss[None] += x[i] ** 2 * w[i]

    def run() -> None:
        for _ in range(STEPS):
            push(0.01)
            move(0.01)
        measure(u)

    return loss, (lambda: (x.from_numpy(np.ones(N, np.float32)), run()), run)


def texts(drawing: Any) -> list[str]:
    """The texts of a drawing, which is well-formed XML."""
    root = ElementTree.fromstring(drawing.svg)
    assert root.tag == f"{SVG}svg"
    return ["|".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def test_kernels_memory_and_what_is_saved(session: Any, tmp_path: Path) -> None:
    loss, (run, _) = program()
    with sg.ad.Tape(loss) as tape:
        run()
    drawing = tape.show(tmp_path / "tape.svg")
    assert (tmp_path / "tape.svg").read_text(encoding="utf-8") == drawing.svg == drawing._repr_svg_()
    found = "\n".join(texts(drawing)).replace(f"{4 * N * STEPS} bytes", f"{4 * N * STEPS:,} bytes")
    assert f"tape of {2 * STEPS + 1} launches: {4 * N * STEPS:,} bytes saved" in found
    for text in (f"push  x {STEPS}", f"move  x {STEPS}", "measure  x 1", "Python writes  x 1", "test_tape_drawings.py:"):
        assert text in found
    assert f"x  {4 * N} bytes|{4 * N * STEPS:,} bytes saved in {STEPS} copies" in found and "loss  4 bytes" in found
    circles = [circle.get("class") for circle in ElementTree.fromstring(drawing.svg).iter(f"{SVG}circle")]
    # Python writes x; push reads x and mass, and adds to v; move reads v, and adds to x; measure reads x and w, and adds to the loss.
    assert Counter(circles) == {"write": 4, "read": 5, "ring": 3}


def test_tapes_that_repeat_a_sequence_draw_the_same(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # checked tapes follow none
    loss, (_, run) = program()
    drawings = set()
    for _ in range(5):
        with sg.ad.Tape(loss) as tape:
            run()
        drawings.add(tape.show().svg)
    assert len(drawings) == 1


def test_times_of_the_profiler(arch: str) -> None:
    if arch in ("wgpu", "interpreter"):
        pytest.skip("no clock for tasks")
    sg.init(arch=arch, kernel_profiler=True)
    loss, (run, _) = program()
    with sg.ad.Tape(loss) as tape:
        run()
    found = [text for text in texts(tape.show()) if text.startswith("push")]
    assert len(found) == 1 and "ms, " in found[0] and "ms its gradient" in found[0]
