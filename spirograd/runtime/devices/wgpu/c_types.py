"""C types by their names, as in `ffi.new("WGPULimits *")`, without parsing the whole header for each.

cffi parses a type after a line for every typedef that it knows. The header of wgpu has 440 of them, which takes 25 to 60 ms; the first
launch in a process needs some 45 types.
"""

from __future__ import annotations

import re
from typing import Any

from cffi import cparser

_KINDS = ("typedef", "struct", "union", "enum")


def parse_alone(ffi: object) -> None:
    """Make ``ffi`` parse a type after those declarations only that the type names.

    Does nothing if cffi stores its declarations differently than versions 1.10 to 2.1 do.
    """
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
