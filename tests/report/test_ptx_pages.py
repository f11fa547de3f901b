"""What a page says of a kernel for CUDA, compiled here without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import spirograd as sg
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners
from spirograd.llvmgen.ptx import capabilities
from spirograd.report.document import kernel_entry


def entry_of(launch: Any) -> dict[str, Any]:
    found: list[Compilation] = []
    listeners.append(found.append)
    try:
        sg.init(arch=sg.cpu, offline_cache=False)
        launch()
    finally:
        listeners.remove(found.append)
        sg.reset()
    (compilation,) = found
    caps, options = capabilities("sm_90"), replace(compilation.options, keep_stages=True)
    return kernel_entry(replace(compilation, compiled=compile_kernel(compilation.kernel, caps, options), caps=caps, options=options))


def test_ptx_comes_from_the_right_python() -> None:
    def launch() -> None:
        x, y = sg.field(sg.f32, shape=5000), sg.field(sg.f32, shape=5000)

        @sg.kernel
        def scale():
            for i in x:
                y[i] = x[i] * 2.5  # here

        scale()

    entry = entry_of(launch)
    stages = {stage["title"]: stage for stage in entry["stages"]}
    assert list(stages)[-3:] == ["LLVM", "LLVM optimised", "PTX"] and not stages["PTX"]["note"]
    here = next(k for k, line in enumerate(stages["Python"]["lines"]) if line.endswith("# here"))
    (number,) = {stages["Python"]["places"][here]}
    lines = [line for line, place in zip(stages["PTX"]["lines"], stages["PTX"]["places"]) if place == number]
    assert any("mul" in line for line in lines) and any("st.global" in line for line in lines)
    (task,) = entry["tasks"]
    assert task["groups"] == "at most 5"  # of 256 invocations, which take four iterations at a time
