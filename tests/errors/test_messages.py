"""What users get to read: each file of cases/ holds programs that are wrong in one way, and the whole text of the error of each.

A file starts with `init: <options>` (options of `sg.init`, or `no`), `archs: <names>` (default: the interpreter) and `needs: <names>`
(of tests/needs.py); then come pairs `=== <title>`, the program, `---`, class and text of the error. A program sees `sg` and `np`. The text
must be the same on every back end.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from golden_cases import Case, read, write

import spirograd as sg
from spirograd.base.tracebacks import user_frames
from spirograd.lang import context

FILES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
PACKAGE = str(Path(sg.__file__).parent)


def run(program: str, file: Path, arch: str, options: str) -> Exception | None:
    """The error of a program, run as a file of its own."""
    file.write_text(program)
    sg.reset()
    if options != "no":
        sg.init(arch=arch, offline_cache=False, **eval(f"dict({options})", {"sg": sg}))
    try:
        exec(compile(program, str(file), "exec", dont_inherit=True), {"sg": sg, "np": np, "__name__": "example", "__file__": str(file)})
        if context.has_session():
            sg.sync()
    except Exception as error:
        return error
    finally:
        sg.reset()
    return None


def rendered(error: Exception | None, file: Path) -> str:
    if error is None:
        return "no error\n"
    text = f"{type(error).__name__}: {error}".replace(str(file), "example.py")
    numbers: dict[str, str] = {}  # fields without a name are counted through the whole process
    text = re.sub(r"\bfield\d+\b", lambda m: numbers.setdefault(m[0], f"field{len(numbers) + 1}"), text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


CASES: list[Any] = [
    pytest.param(path, arch, id=f"{path.stem}-{arch}") for path in FILES for arch in read(path)[0].get("archs", "interpreter").split()
]


@pytest.mark.parametrize(("path", "back_end"), CASES)
def test_messages(path: Path, back_end: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    needs.need(back_end)
    settings, cases = read(path)
    for name in settings.get("needs", "").split():
        needs.need(name)
    assert cases, f"{path} holds no programs"
    found = []
    for number, case in enumerate(cases):
        file = tmp_path / f"example{number}.py"
        error = run(case.source, file, back_end, settings.get("init", ""))
        found.append(Case(case.title, case.source, rendered(error, file)))
        if request.config.getoption("--bless"):
            continue
        assert found[-1].expected == case.expected, case.title
        assert isinstance(error, sg.SpirogradError), f"{case.title}: a raw Python exception reached the user"
        shown = traceback.extract_tb(user_frames(error.__traceback__))
        assert not [f for f in shown if f.filename.startswith(PACKAGE)], case.title
    if request.config.getoption("--bless"):
        write(path, settings, found)


def test_enough_errors() -> None:
    titles = [case.title for path in FILES for case in read(path)[1]]
    assert len(set(titles)) == len(titles) >= 150
