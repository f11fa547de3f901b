"""`Any` in annotations: modules that mypy lets have it are listed in pyproject.toml, and the list only shrinks."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# How often each part of the package says `Any` at most. When a part says it less often, lower the number.
MOST = {
    "aot": 10,
    "base": 27,
    "derivatives": 2,
    "interop": 32,
    "ir": 10,
    "lang": 197,
    "llvmgen": 4,
    "runtime": 52,
    "spirvgen": 1,
    "": 5,
}


def _sources() -> dict[str, str]:
    """The source of each module of the package, by its name."""
    paths = [path for suffix in ("py", "pyi") for path in sorted((ROOT / "spirograd").rglob(f"*.{suffix}"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8") for path in paths}


def _exceptions() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"module = \[\n((?:  \"[^\"]+\",\n)+)\]\ndisallow_any_explicit = false", text)
    assert found is not None and "\ndisallow_any_explicit = true\n" in text
    return re.findall(r'"([^"]+)"', found[1])


def _says_any(source: str) -> bool:
    return re.search(r"\bAny\b|Callable\[\.\.\.|NDArray|\bslice\]", source) is not None


def test_exceptions_are_modules_that_say_any() -> None:
    sources = _sources()
    for pattern in _exceptions():
        covered = [source for name, source in sources.items() if fnmatch.fnmatch(name.removesuffix(".__init__"), pattern)]
        assert any(map(_says_any, covered)), f"{pattern} does not say `Any`: remove it from the list in pyproject.toml"


def test_no_part_says_any_more_often() -> None:
    counts: Counter[str] = Counter()
    for name, source in _sources().items():
        parts = name.split(".")
        counts[parts[1] if len(parts) > 2 else ""] += len(re.findall(r"\bAny\b", source))
    more = {part: (count, MOST.get(part, 0)) for part, count in counts.items() if count > MOST.get(part, 0)}
    assert not more, f"`Any` where there was none, as part: (now, at most) {more}; use `object` with narrowing, a union or a protocol"
