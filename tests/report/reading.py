"""Scripts whose pages the tests look at, and reading these pages without the code that made them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs

# Lines: 10 the function, 15 `def fill`, 16 its loop, 17 the call, 18 the store, 23 the loop that an argument bounds.
SCRIPT = """\
import numpy as np
import spirograd as sg

sg.init()
field_of_x = sg.field(sg.f32, shape=1000)


@sg.func
def square(v):
    return v * v


# </script><script>document.title = "broken"</script><!--
@sg.kernel
def fill(offset: sg.f32, a: sg.types.ndarray()):
    for i in field_of_x:
        t = square(a[i] + offset)
        field_of_x[i] = t  # </script><b id="broken">&amp;


@sg.kernel
def count(n: sg.i32):
    for i in range(n):
        field_of_x[i] += 1.0


fill(1.0, np.ones(1000, np.float32))
count(5)
"""
SQUARE, DEF, LOOP, CALL, STORE = 10, 15, 16, 17, 18
NAME = "odd <b>&name.py"
CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000")


def dump(folder: Path, *options: str, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    """Run `spirograd dump --html` on ``script``; the page is page.html in ``folder``."""
    path = folder / NAME
    path.write_text(script)
    command = [sys.executable, "-m", "spirograd", "dump", str(path), "--html", str(folder / "page.html"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def data_of(page: str) -> dict[str, Any]:
    """The document in a page, as a browser finds it: up to the first end of a script."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script', page, re.S | re.I)
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


def kernel(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [k for k in document["kernels"] if k["name"] == name]
    return found  # type: ignore[no-any-return]


def python_lines(entry: dict[str, Any], title: str, text: str) -> list[set[int]]:
    """For each line with ``text`` of a stage, the lines of Python that the page says it comes from."""
    found = []
    for stage in entry["stages"]:
        for k, line in enumerate(stage["lines"]) if stage["title"] == title else ():
            if text in line:
                numbers = [stage["places"][k], *stage["also"].get(str(k), [])]
                found.append({entry["places"][n][1] for n in numbers if n >= 0})
    assert found, f"no line of {title} has {text}"
    return found


def browse(page: Path, profile: Path) -> str:
    """The page as Chromium has it once its program has run."""
    needs.need("chromium")
    command = [*CHROMIUM, "--dump-dom", f"--user-data-dir={profile}", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
