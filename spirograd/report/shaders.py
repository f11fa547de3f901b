"""Listings of SPIR-V modules: disassembled, and translated to Metal, with the Python line of each of their lines."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from spirograd.report.places import Listing, Place
from spirograd.spirvgen.disasm import disassembled_lines

TRANSLATOR = "spirv-cross"
_LINE = re.compile(r'#line (\d+) "(.*)"$')
_MISSING = f"There is no program `{TRANSLATOR}` on the path: install SPIRV-Cross (Debian and Ubuntu: the package spirv-cross) to see Metal."
_SECONDS = 60


def disassembly(module: bytes) -> Listing:
    """Return the disassembly of the module, with source lines from OpLine."""
    pairs = disassembled_lines(module)
    return Listing([line for line, _ in pairs], [place for _, place in pairs])


def metal(module: bytes) -> Listing:
    """Return the module in the Metal shading language; if that is not possible, no lines and a note with the reason."""
    program = shutil.which(TRANSLATOR)
    if program is None:
        return Listing([], [], _MISSING)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.spv")
        path.write_bytes(module)
        command = [program, "--msl", "--msl-version", "30100", "--emit-line-directives", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Listing([], [], f"{TRANSLATOR}: {error}")
    if done.returncode:
        return Listing([], [], f"{TRANSLATOR} cannot translate this module: {done.stderr.strip() or done.returncode}")
    return _without_directives(done.stdout)


def _without_directives(text: str) -> Listing:
    """Return the text without ``#line`` directives, which give the source lines of the following lines up to the end of the function.

    Several directives in a row are expressions that the translator merged into the next line.
    """
    lines: list[str] = []
    places: list[Place | None] = []
    also: dict[int, list[Place]] = {}
    waiting: list[Place] = []
    here: Place | None = None
    for line in text.splitlines():
        directive = _LINE.match(line)
        if directive:
            here = (directive[2], int(directive[1]))
            waiting.append(here)
            continue
        here = None if line == "}" else here
        says = line.strip() not in ("", "{", "}")
        if says and here is not None:
            others = [place for place in dict.fromkeys(waiting) if place != here]
            if others:
                also[len(lines)] = others
            waiting = []
        lines.append(line)
        places.append(here if says else None)
    return Listing(lines, places, "", also)
