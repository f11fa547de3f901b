"""Phrases that error messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, candidates: Iterable[str], cutoff: float = 0.7) -> str:
    """Return a hint that names the candidates similar to ``name``, or an empty string."""
    others = [c for c in candidates if c != name]
    same = [c for c in others if c.lower() == name.lower()]
    close = same or difflib.get_close_matches(name, others, n=2, cutoff=cutoff)
    return f"did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else ""


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 index``, ``2 indices``."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def with_article(noun: str) -> str:
    """Return a noun with its article: ``a list``, ``an int``."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def integer_text(n: int) -> str:
    """Return ``the integer 70000``, or the number of bits of an integer with very many digits."""
    return f"the integer {n}" if n.bit_length() <= 128 else f"an integer of {n.bit_length()} bits"


def over_limit(nbytes: int, used: int, limit: int) -> str:
    """Return the message for an allocation beyond the option `device_memory_GB`."""
    return (
        f"cannot allocate {nbytes} bytes: {used} of the {limit} bytes that the option `device_memory_GB` allows are in use; "
        "raise it, or use less memory"
    )
