"""Types of C by their names, as `ffi.new("WGPULimits *")` asks for them, without a look at the whole header for each.

cffi parses a type behind a line for every typedef that it knows. The header of wgpu has 440 of them, which takes 25 to 60 ms; the first
launch in a process asks for some 45 types.
"""

from __future__ import annotations

import re
from typing import Any

from cffi import cparser

_KINDS = ("typedef", "struct", "union", "enum")


def parse_alone(ffi: object) -> None:
    """From now on ``ffi`` parses a type behind those declarations only that the type names. Does nothing if cffi keeps its declarations
    elsewhere than versions 1.10 to 2.1 do."""
    parser: Any = getattr(ffi, "_parser", None)
    if not all(hasattr(parser, name) for name in ("_declarations", "_options", "parse_type")):
        return

    def parse_type(text: str) -> Any:
        alone: Any = cparser.Parser()
        keys = [f"{kind} {name}" for name in set(re.findall(r"\w+", text)) for kind in _KINDS]
        alone._declarations = {key: parser._declarations[key] for key in keys if key in parser._declarations}
        alone._options = parser._options
        return alone.parse_type(text)

    parser.parse_type = parse_type
