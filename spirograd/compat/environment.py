"""Options of `init` from the environment variables of the family, such as TI_DEBUG=1 and QD_OFFLINE_CACHE=0."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from spirograd.base import dtypes
from spirograd.base.errors import SpirogradValueError
from spirograd.base.records import fields
from spirograd.config import WITHOUT_EFFECT, Config

# Names of default types, which the variables give as a number of bits.
_KINDS = {"default_fp": "f", "default_ip": "i"}


def options_from(alias: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the options that variables set, other than ``given``, which take precedence. ``alias``: "ti" or "qd"."""
    names = {f.name for f in fields(Config)} | WITHOUT_EFFECT.keys()
    found = {name: os.environ.get(f"{alias}_{name}".upper(), "") for name in names - given.keys() - {"arch"}}
    return {name: _value(alias, name, text) for name, text in found.items() if text}


def arch_from(alias: str, given: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """Return the back end that ``TI_ARCH`` or ``QD_ARCH`` sets, or else ``given``. In Quadrants, ``given`` takes precedence."""
    arch = os.environ.get(f"{alias}_ARCH".upper())
    if arch is None or (alias == "qd" and given is not None):
        return given
    return "cpu" if arch in ("x64", "arm64") else arch


def _value(alias: str, name: str, text: str) -> object:
    if name in _KINDS:
        dtype = getattr(dtypes, f"{_KINDS[name]}{text}", None) if text in ("32", "64") else None
        if dtype is None:
            raise SpirogradValueError(f"the environment variable {alias.upper()}_{name.upper()} is 32 or 64, not {text!r}")
        return dtype
    return int(text) if name in WITHOUT_EFFECT and text.isdigit() else text
