"""Damaged files, loaded; ``python -m tests.fuzz files`` for long runs."""

from __future__ import annotations

import pytest
from cases import seeds

from . import file_programs, files


@pytest.mark.archs("cpu", "vulkan")
@pytest.mark.parametrize("first", seeds(2, 60))
def test_damaged_files(first: int, arch: str) -> None:
    for seed in range(100 * first, 100 * first + 100):
        files.check(files.write(seed), (arch,))


@pytest.mark.archs("cpu")
def test_some_are_loaded(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the programs say something: what is damaged can be loaded while it is not, and subtle changes reach what comes behind the
    checks of types."""
    loaded = []
    load = files._load
    monkeypatch.setattr(files, "_load", lambda *args: (loaded.append(load(*args)), loaded[-1])[1])
    tuned = [seed for seed in range(700) if files.write(seed).kind == "tuned"]
    for seed in tuned:
        files.check(files.write(seed), (arch,))
    assert 10 < sum(module is not None for module in loaded) < len(tuned)
    monkeypatch.setattr(file_programs, "changed", lambda plain, r, tuned: plain)
    loaded.clear()
    for seed in range(2, 5):
        files.check(files.write(7 * seed), (arch,))
        files.check(files.write(7 * seed + 2), (arch,))
    assert None not in loaded and len(loaded) == 6
