"""Writing the stages of compiled kernels to files."""

from __future__ import annotations

from pathlib import Path

from spirograd.base.artifact import CompiledKernel


def write_stages(compiled: CompiledKernel, folder: Path) -> list[Path]:
    """Write every stage of ``compiled`` to ``folder`` as ``<kernel>-<key>.<stage>``; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for name, content in compiled.stages.items():
        path = folder / f"{compiled.name}-{compiled.key[:8]}.{name}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        out.append(path)
    return out
