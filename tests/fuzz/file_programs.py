"""Damaged files: modules, and records of the offline cache, of which values, names and bytes were changed at random."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

KINDS = ("sealed", "tuned", "manifest", "bytes", "record", "tuned record", "forged")
# What `eval` would run: see `files.HIT`.
CODE = "setattr(__import__('builtins'), 'spirograd_fuzz_hit', 1)"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 63, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**30),
    *(1.5, float("nan"), float("inf"), "", "x", "0", "..", "../../x", "/etc/passwd", "\0", "ü", "a" * 300, CODE, f"0) or {CODE} or (0"),
    *("{0:999999999}", "{0.__class__}", "%n", "<999999999x", "tree", "array", "grad", "parent", "__class__", "main", "sm_x"),
    *(
        [],
        [0],
        [[0]],
        [None],
        [CODE],
        {},
        {"class": "Kernel"},
        {"class": None},
        {"class": "Arg", "number": CODE},
        {"bytes": 0},
        {"bytes": -1},
    ),
    *({"dtype": "f32"}, {"dtype": CODE}, {"dtype": []}, {"float": "nan"}, {"set": [[0, 0]]}, {"dict": []}, {"list": []}),
)
DEEP = 3000


@dataclass(frozen=True)
class Damaged:
    """How a file is damaged. ``kind``: "manifest" of a module; "sealed", with a digest made for it anew; "bytes" of an archive; "record" of
    the cache, sealed with the user's key; "forged", with another one. "tuned": changes leave the types of values as they are."""

    kind: str
    seed: int


def write(seed: int) -> Damaged:
    """The program of a seed."""
    return Damaged(KINDS[seed % len(KINDS)], seed)


def places(plain: Any) -> list[tuple[Any, Any]]:
    """Where values stand: containers, and names or numbers in them."""
    found: list[tuple[Any, Any]] = []
    left = [plain]
    while left:
        container = left.pop()
        for key, value in _entries(container):
            found.append((container, key))
            if isinstance(value, (dict, list)):
                left.append(value)
    return found


def _entries(container: Any) -> Iterator[tuple[Any, Any]]:
    return iter(list(container.items() if isinstance(container, dict) else enumerate(container)))


def changed(plain: Any, r: random.Random, tuned: bool = False) -> Any:
    """A copy of JSON with one to three changes; ``tuned``: that leave types as they are."""
    made = copy.deepcopy(plain)
    if tuned:
        for _ in range(r.choice((1, 1, 2, 3))):
            container, key = r.choice([(c, k) for c, k in places(made) if not isinstance(c[k], (dict, list)) and k != "class"])
            _tune(container, key, made, r)
        return made
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        found = places(made)
        if not found:
            break
        container, key = r.choice(found)
        r.choice(_CHANGES)(container, key, made, r)
    if r.random() < 0.05:
        container, key = r.choice(places(made) or [([made], 0)])
        _nest(container, key, r)
    return made


def _replace(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    container[key] = copy.deepcopy(r.choice(VALUES))


def _delete(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    del container[key]


def _repeat(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    if isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    else:
        container[r.choice(("more", "class", "run", "__init__", f"{key}_"))] = copy.deepcopy(container[key])


def _rename(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    if isinstance(container, dict):
        container[r.choice(("x", "class", key.upper(), key + "s"))] = container.pop(key)
    else:
        r.shuffle(container)


def _other(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    """A value from another place, most often of the same name."""
    found = places(whole)
    alike = [(c, k) for c, k in found if k == key and c is not container]
    other, at = r.choice(alike if alike and r.random() < 0.8 else found)
    container[key] = copy.deepcopy(other[at])


def _nudge(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    value = container[key]
    if isinstance(value, str) and value:
        k = r.randrange(len(value))
        container[key] = value[:k] + r.choice(("", "x", ".", "/", '"', value)) + value[k + 1 :]
    elif isinstance(value, bool) or not isinstance(value, int):
        container[key] = not value
    else:
        container[key] = r.choice((value + 1, value - 1, -value, 2 * value, value + 8, value ^ 1 << r.randrange(64)))


def _tune(container: Any, key: Any, whole: Any, r: random.Random) -> None:
    value = container[key]
    alike = [c[k] for c, k in places(whole) if k == key and type(c[k]) is type(value)]
    if type(value) is int and r.random() < 0.7:
        container[key] = r.choice(
            (value + 1, value - 1, value + 8, 2 * value, 0, 1, 1 << r.randrange(63), r.randrange(1 << r.randrange(1, 62)))
        )
    elif type(value) is bool:
        container[key] = not value
    else:
        container[key] = r.choice(alike)


def _nest(container: Any, key: Any, r: random.Random) -> None:
    value = container[key]
    for _ in range(r.choice((1, 2, 150, DEEP))):
        if r.random() < 0.5:
            value = {"class": "Add", "a": value, "b": 1}
        else:
            value = [value]
    container[key] = value


_CHANGES = (_replace, _replace, _replace, _delete, _repeat, _rename, _other, _other, _nudge, _nudge)


def text(plain: Any, r: random.Random) -> bytes:
    """JSON, now and then with a name that stands there twice."""
    made = dumped(plain)
    if r.random() < 0.03:
        made = made.replace('"class"', '"class":"Arg","class"', 1)
    return made.encode()


def dumped(plain: Any) -> str:
    """`json.dumps`, of any depth."""
    out: list[str] = []
    left: list[Any] = [plain]
    while left:
        value = left.pop()
        if isinstance(value, _Mark):
            out.append(value)
        elif isinstance(value, dict):
            left.append(_Mark("}"))
            for k, (name, entry) in enumerate(reversed(value.items())):
                left += [*([_Mark(",")] if k else []), entry, _Mark(f"{json.dumps(name)}:")]
            left.append(_Mark("{"))
        elif isinstance(value, list):
            left.append(_Mark("]"))
            for k, entry in enumerate(reversed(value)):
                left += [*([_Mark(",")] if k else []), entry]
            left.append(_Mark("["))
        else:
            out.append(json.dumps(value))
    return "".join(out)


class _Mark(str):
    """Punctuation, not a value."""


def changed_bytes(data: bytes, r: random.Random) -> bytes:
    """A copy of bytes with a few changes."""
    made = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4))):
        k = r.randrange(len(made) + 1)
        n = r.choice((1, 1, 2, 4, 64))
        way = r.randrange(5)
        if way == 0:
            made[k : k + n] = r.randbytes(n)
        elif way == 1:
            del made[k : k + r.choice((n, len(made)))]
        elif way == 2:
            made[k:k] = made[k : k + n]
        elif way == 3 and k < len(made):
            made[k] ^= 1 << r.randrange(8)
        else:  # the directory of an archive stands at the end
            at = max(0, len(made) - r.randrange(1, 400))
            made[at : at + n] = bytes([r.choice((0, 1, 255))]) * n
    return bytes(made)
