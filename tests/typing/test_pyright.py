"""Pyright accepts a typical program, the examples and every page of the documentation, and finds the mistakes in other programs.

It runs once, on everything: most of its time goes into starting and into NumPy's types.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from pages import ROOT, WITH_CODE, program
from pages import name as name_of

from spirograd.base.later import Later
from spirograd.compat.member_tables import EMPTY_MODULES

HERE = Path(__file__).parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Every public name of these is known to type checkers, but for those that this version does not have.
MODULES = ("spirograd", "spirograd.types", "spirograd.math", "spirograd.ad", "spirograd.compat.taichi", "spirograd.compat.quadrants")
_UNRESOLVED = re.compile(r'Import "(\w+)[\w.]*" could not be resolved')
_SHOWN = re.compile(r'Type of ".*" is "(.*)"', re.DOTALL)

# Severity -> (line, message) of all that is said of a file.
Found = dict[str, list[tuple[int, str]]]

pytestmark = pytest.mark.needs("pyright")


def all_names() -> str:
    """A program that uses the names of `MODULES`."""
    lines = []
    for module in map(importlib.import_module, MODULES):
        lines.append(f"import {module.__name__}")
        known = [name for name in module.__all__ if name not in EMPTY_MODULES and not isinstance(getattr(module, name), Later)]
        lines += [f"reveal_type({module.__name__}.{name})" for name in known]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What pyright finds, by name of the file."""
    folder = tmp_path_factory.mktemp("pyright")
    for page in WITH_CODE:
        (folder / f"{name_of(page)}.py").write_text(program(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "names.py").write_text(all_names(), encoding="utf-8")
    files = [*sorted(folder.glob("*.py")), *sorted(HERE.glob("[!t]*.py")), *EXAMPLES]
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, files)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert run.stdout.startswith("{"), run.stdout + run.stderr
    by_file: dict[str, Found] = {file.name: defaultdict(list) for file in files}
    for d in json.loads(run.stdout)["generalDiagnostics"]:
        unresolved = _UNRESOLVED.match(d["message"])
        if unresolved is None or importlib.util.find_spec(unresolved[1]) is not None:
            by_file[Path(d["file"]).name][d["severity"]].append((d["range"]["start"]["line"] + 1, d["message"]))
    return by_file


def wrong_on_purpose(source: str) -> list[range]:
    """The lines of functions called `wrong`, with which pages show what an error looks like."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "wrong"]
    return [range(f.lineno, (f.end_lineno or f.lineno) + 1) for f in functions]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_pages_have_no_errors_but_those_on_purpose(page: Path, found: dict[str, Found]) -> None:
    wrong = wrong_on_purpose(program(page.read_text(encoding="utf-8")))
    errors = found[f"{name_of(page)}.py"]["error"]
    assert [f"{page.name}:{line}: {message}" for line, message in errors if not any(line in lines for lines in wrong)] == []
    assert all(any(line in lines for line, _ in errors) for lines in wrong), "pyright accepts a function called `wrong`"


@pytest.mark.parametrize("name", ["program.py", "names.py", "shown.py", *(example.name for example in EXAMPLES)])
def test_program_has_no_errors(name: str, found: dict[str, Found]) -> None:
    assert found[name]["error"] == []


def test_mistakes_are_found(found: dict[str, Found]) -> None:
    lines = (HERE / "wrong.py").read_text().splitlines()
    wanted = [number for number, line in enumerate(lines, 1) if line.endswith("# error")]
    assert sorted({line for line, _ in found["wrong.py"]["error"]}) == wanted


def test_editors_know_the_type_of_what_can_be_completed(found: dict[str, Found]) -> None:
    lines = (HERE / "shown.py").read_text().splitlines()
    wanted = {number: line.partition("  # ")[2] for number, line in enumerate(lines, 1) if line.lstrip().startswith("reveal_type(")}
    shown = {line: _SHOWN.sub(r"\1", message) for line, message in found["shown.py"]["information"]}
    assert shown == wanted


def test_public_names_have_types(found: dict[str, Found]) -> None:
    """Only annotations for arguments of any kind are `Any`."""
    shown = dict(found["names.py"]["information"])
    source = all_names().splitlines()
    untyped = [source[line - 1] for line, message in shown.items() if _SHOWN.sub(r"\1", message) in ("Any", "type[Any]", "Unknown")]
    assert {line.rpartition(".")[2].rstrip(")") for line in untyped} == {"Template", "template"}
