"""Programs that are edited between processes, for the fuzzer of stored traces.

A program is a kernel that adds up *ingredients*: each reads something from outside of the kernel (a global, an entry, a closure, an
attribute, a function of another module), whose value is drawn, and can be drawn again by an edit. An ingredient says what its value adds,
in plain Python, so that the reference shares no code with the package.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Reference = Callable[[Any, np.ndarray], Any]  # the value, x in f64 -> what is added


@dataclass(frozen=True)
class Ingredient:
    """``draw``: a value, as source text. ``lines``: of the program, where V is the value and K the number of the ingredient; ``helper``:
    of the other module; ``early``: of the body of the class; ``init``: of its constructor; ``body``: of the kernel. ``adds``: the
    reference."""

    draw: Callable[[random.Random], str]
    body: str
    adds: Reference
    lines: str = ""
    helper: str = ""
    early: str = ""
    init: str = ""


def number(r: random.Random) -> str:
    """A number, of one of several types: equal numbers of different types are different values."""
    n = r.choice([0, 1, 2, 3, 1.0, 2.0, 0.5, -1.5, 0.25])
    return r.choice([f"{n}", f"{float(n)}", f"np.float32({n})", f"np.float64({n})", f"{int(n)}", f"np.int32({int(n)})"])


def small(r: random.Random) -> str:
    return f"{r.randrange(5)}"


def boolean(r: random.Random) -> str:
    return r.choice(["True", "False", "0", "1"])


def sequence(r: random.Random) -> str:
    items = ", ".join(number(r) for _ in range(r.randrange(1, 4)))
    return r.choice([f"[{items}]", f"({items},)"])


def table(r: random.Random) -> str:
    names = r.sample(["one", "two", "three"], r.randrange(2, 4))
    return "{" + ", ".join(f'"{name}": {number(r)}' for name in sorted(names, key=lambda _: r.random())) + "}"


def pair(r: random.Random) -> str:
    """Two objects, which may be one."""
    return r.choice([f"[Part({number(r)})] * 2", f"[Part({number(r)}), Part({number(r)})]"])


def formula(r: random.Random) -> str:
    return r.choice(["v * 2.0", "v + 0.5", "v * v", "abs(v - 1.0)", "v - 0.25"])


def function(r: random.Random) -> str:
    return r.choice(["double", "halve", "shift"])


def element(r: random.Random) -> str:
    return r.choice(["sg.f32", "sg.f64", "sg.i32"])


class Part:
    """What the class of the same name is in programs."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight


def value_of(text: str) -> Any:
    return eval(text, {"np": np, "Part": Part})


def _plain(value: Any, x: np.ndarray) -> Any:
    return float(value)


def _sum(value: Any, x: np.ndarray) -> Any:
    return sum(float(v) * (k + 1) for k, v in enumerate(value))


def _formula(text: str, x: np.ndarray) -> Any:
    return eval(text, {"v": x, "abs": np.abs})


def _function(name: str, x: np.ndarray) -> Any:
    return {"double": 2 * x, "halve": x / 2, "shift": x + 3}[name]


def _element(name: str, x: np.ndarray) -> Any:
    return np.trunc(x * 1.5) if name == "sg.i32" else x * 1.5


_FUNCTION = "@sg.func\ndef fK(v):\n    return V\n"

_CLOSURE = """def makeK(c):
    @sg.func
    def f(v):
        return v * c
    return f
fK = makeK(V)
"""

CATALOGUE = {
    "global": Ingredient(number, "s += GK", _plain, "GK = V"),
    "factor": Ingredient(number, "s += x[i] * GK", lambda v, x: float(v) * x, "GK = V"),
    "twice the same": Ingredient(number, "s += GK + HK", lambda v, x: 2 * float(v), "GK = V\nHK = GK"),
    "static bound": Ingredient(small, "for j in sg.static(range(GK)):\n    s += j * 0.5", lambda v, x: v * (v - 1) / 4, "GK = V"),
    "run-time bound": Ingredient(small, "for j in range(GK):\n    s += 0.25", lambda v, x: v / 4, "GK = V"),
    "static branch": Ingredient(boolean, "if sg.static(GK):\n    s += x[i]", lambda v, x: x if v else 0.0, "GK = V"),
    "branch": Ingredient(boolean, "if GK:\n    s += x[i]", lambda v, x: x if v else 0.0, "GK = V"),
    "entries": Ingredient(sequence, "for j in sg.static(range(len(GK))):\n    s += GK[j] * (j + 1)", _sum, "GK = V"),
    "entries in order": Ingredient(
        sequence, "for e in sg.static(GK):\n    s += e", lambda v, x: float(sum(float(e) for e in v)), "GK = V"
    ),
    "nested entry": Ingredient(number, 's += GK["a"][1].b', _plain, 'GK = {"a": [0, types.SimpleNamespace(b=V)]}'),
    "keys": Ingredient(
        table,
        'for k in sg.static(GK):\n    s += GK[k] * len(k)',
        lambda v, x: sum(float(e) * len(k) for k, e in v.items()),
        "GK = V",
    ),
    "an array of NumPy": Ingredient(sequence, "s += GK[0]", lambda v, x: float(v[0]), "GK = np.array(V, np.float32)"),
    "a vector": Ingredient(number, "s += (GK * 2.0)[1]", lambda v, x: 2 * float(v), "GK = sg.Vector([1.0, float(V)])"),
    "a class": Ingredient(number, "s += CK.a", _plain, "class CK:\n    a = V"),
    "an inherited attribute": Ingredient(number, "s += DK.a", _plain, "class CK:\n    a = V\nclass DK(CK):\n    pass"),
    "a class that changes later": Ingredient(number, "s += CK.a", _plain, "class CK:\n    a = 7\nCK.a = V"),
    "an enumeration": Ingredient(number, "s += EK.A.value", _plain, "class EK(enum.Enum):\n    A = V"),
    "a frozen dataclass": Ingredient(
        number, "s += FK.a", _plain, "@dataclasses.dataclass(frozen=True)\nclass TK:\n    a: object\n    b: int = 3\nFK = TK(V)"
    ),
    "a named tuple": Ingredient(number, "s += NK.a", _plain, 'NK = collections.namedtuple("NK", "a b")(V, 1)'),
    "an attribute of self": Ingredient(number, "s += self.aK", _plain, init="self.aK = V"),
    "an attribute of the class": Ingredient(number, "s += self.aK", _plain, early="aK = V"),
    "an attribute that hides another": Ingredient(
        boolean, "s += self.aK", lambda v, x: 2.0 if v else 1.0, early="aK = 1.0", init="if V: self.aK = 2.0"
    ),
    "an attribute that may be missing": Ingredient(
        boolean, 'if sg.static(hasattr(self, "aK")):\n    s += 4.0', lambda v, x: 4.0 if v else 0.0, init="if V: self.aK = 1"
    ),
    "a default of getattr": Ingredient(
        boolean, 's += getattr(self, "aK", 3.0)', lambda v, x: 5.0 if v else 3.0, init="if V: self.aK = 5.0"
    ),
    "a property": Ingredient(number, "s += self.pK", lambda v, x: 2 * float(v), early="@property\ndef pK(self):\n    return (V) * 2"),
    "a list of objects": Ingredient(
        pair,
        "for part in sg.static(self.aK):\n    s += part.weight",
        lambda v, x: sum(float(p.weight) for p in v),
        init="self.aK = V",
    ),
    "a method": Ingredient(formula, "s += self.mK(x[i])", _formula, early="@sg.func\ndef mK(self, v):\n    return V"),
    "a static method": Ingredient(
        formula, "s += self.mK(x[i])", _formula, early="@staticmethod\n@sg.func\ndef mK(v):\n    return V"
    ),
    "a function": Ingredient(formula, "s += fK(x[i])", _formula, _FUNCTION),
    "a function in a function": Ingredient(
        formula, "s += gK(x[i])", _formula, f"{_FUNCTION}@sg.func\ndef gK(v):\n    return fK(v)"
    ),
    "a real function": Ingredient(
        formula, "s += fK(x[i])", _formula, "@sg.real_func\ndef fK(v: sg.f32) -> sg.f32:\n    return V"
    ),
    "a default argument": Ingredient(
        number, "s += fK(x[i])", lambda v, x: x + float(v), "DK = V\n@sg.func\ndef fK(v, k=DK):\n    return v + k"
    ),
    "which function": Ingredient(function, "s += gK(x[i])", _function, "gK = V"),
    "a table of functions": Ingredient(function, 's += TK["f"](x[i])', _function, 'TK = {"f": V}'),
    "a method of another class": Ingredient(function, "s += self.oK.apply(x[i])", _function, init="self.oK = Applies_V()"),
    "a module's global": Ingredient(number, "s += helper.GK", _plain, helper="GK = V"),
    "a module's function": Ingredient(formula, "s += helper.fK(x[i])", _formula, helper=_FUNCTION),
    "what a module's function reads": Ingredient(
        number, "s += helper.fK(x[i])", lambda v, x: x * float(v), helper="GK = V\n@sg.func\ndef fK(v):\n    return v * GK"
    ),
    "an imported name": Ingredient(number, "s += hK", _plain, "from helper import GK as hK", helper="GK = V"),
    "a type": Ingredient(element, "wK: TK = x[i] * 1.5\ns += wK", _element, "TK = V"),
    "a cast": Ingredient(element, "s += sg.cast(x[i] * 1.5, TK)", _element, "TK = V"),
    "the type of a parameter": Ingredient(
        element, "s += fK(x[i] * 1.5)", _element, "@sg.real_func\ndef fK(v: V) -> V:\n    return v"
    ),
    "the extent of a field": Ingredient(
        small, "s += zK.shape[0]", lambda v, x: v + 3, "zK = sg.field(sg.f32, 3 + V)"
    ),
    "the element of a field": Ingredient(
        small, "s += zK[V]", lambda v, x: 2.5 * v, "zK = sg.field(sg.f32, 5)\nfor k in range(5): zK[k] = 2.5 * k"
    ),
    "the type of a field": Ingredient(
        element, "zK[0] = x[i] * 0.0 + 1.5\ns += zK[0]", lambda v, x: 1.0 if v == "sg.i32" else 1.5, "zK = sg.field(V, 2)"
    ),
    "two fields, or one": Ingredient(
        boolean,
        "s += zK[1] + yK[1]",
        lambda v, x: 6.0 if v else 3.0,
        "zK = sg.field(sg.f32, 2)\nyK = sg.field(sg.f32, 2)\nif V: yK = zK\nyK[1] = 3.0",
    ),
    "two arrays, or one": Ingredient(
        boolean,
        "s += zK[1] + yK[1]",
        lambda v, x: 6.0 if v else 3.0,
        "zK = sg.ndarray(sg.f32, 2)\nzK.fill(0)\nyK = sg.ndarray(sg.f32, 2)\nif V: yK = zK\nyK[1] = 3.0",
    ),
    "the axes of a layout": Ingredient(
        boolean, "s += zK[1, 0]", lambda v, x: 7.0, "zK = sg.field(sg.f32, (2, 3), order='ji' if V else 'ij')\nzK[1, 0] = 7.0"
    ),
    "a vector field": Ingredient(
        small, "s += zK[0][1] + zK.n", lambda v, x: 4.0 + v + 2, "zK = sg.Vector.field(V + 2, sg.f32, 1)\nzK[0][1] = 4.0"
    ),
    "a closure": Ingredient(number, "s += cK", _plain),
    "a closure of a function": Ingredient(
        number, "s += fK(x[i])", lambda v, x: x * float(v), _CLOSURE
    ),
    "a template argument": Ingredient(number, "s += tK", _plain),
    "an ndarray of more elements": Ingredient(
        small, "s += zK.shape[0]", lambda v, x: v + 1, "zK = sg.ndarray(sg.f32, V + 1)"
    ),
}  # fmt: skip
_EVALUATED = {number, small, boolean, sequence, table, pair}


@dataclass(frozen=True)
class Version:
    """A version of a program: ingredients by name, with their values as text. ``blank``: lines before the program; ``size``: of `x`;
    ``zeros``: whether `x` is left as it is, so that the kernel gives fields their layout."""

    ingredients: tuple[tuple[str, str], ...]
    blank: int = 0
    size: int = 4
    zeros: bool = False

    def files(self) -> tuple[str, str]:
        """The program and the module that it imports."""
        parts: dict[str, list[str]] = {"lines": [], "helper": [], "early": [], "init": [], "body": []}
        for k, (name, value) in enumerate(self.ingredients):
            ingredient = CATALOGUE[name]
            for part, lines in parts.items():
                text = getattr(ingredient, part).replace("Applies_V", f"Applies{value.title()}")
                lines += _filled(text, value, k).splitlines()
        closures = [(f"c{k}", value) for k, (name, value) in enumerate(self.ingredients) if name == "a closure"]
        templates = [(f"t{k}", value) for k, (name, value) in enumerate(self.ingredients) if name == "a template argument"]
        program = PROGRAM.format(
            blank="\n" * self.blank,
            size=self.size,
            first="" if self.zeros else f"x.from_numpy((np.arange({self.size}) * 0.75).astype(np.float32))",
            lines="\n".join(parts["lines"]),
            early=_indented(["pass", *parts["early"]], 8),
            init=_indented(["pass", *parts["init"]], 12),
            body=_indented(parts["body"], 16),
            parameters="".join([f", {name}: sg.template()" for name, _ in templates]),
            closures=", ".join(name for name, _ in closures),
            held=", ".join(value for _, value in closures),
            passed=", ".join(value for _, value in templates),
        )
        return program, HELPER + "\n".join(parts["helper"]) + "\n"

    def expected(self) -> np.ndarray:
        """What the kernel writes, in f64."""
        x = np.arange(self.size) * (0.0 if self.zeros else 0.75)
        total = np.zeros(self.size)
        for name, value in self.ingredients:
            ingredient = CATALOGUE[name]
            total = total + ingredient.adds(value_of(value) if ingredient.draw in _EVALUATED else value, x)
        return total


def _filled(text: str, value: str, k: int) -> str:
    """Put the value and the number of an ingredient into its text."""
    out = []
    for at, char in enumerate(text):
        alone = not (text[at - 1 : at].isalnum() or text[at - 1 : at] in ("_",)) and not text[at + 1 : at + 2].isalnum()
        out.append(value if char == "V" and alone else str(k) if char == "K" and text[at - 1 : at].isalpha() else char)
    return "".join(out)


def _indented(lines: Sequence[str], columns: int) -> str:
    return "\n".join(" " * columns + line for line in lines)


PROGRAM = """{blank}import collections
import dataclasses
import enum
import types
import numpy as np
import spirograd as sg
import helper
from helper import double, halve, shift

class Part:
    def __init__(self, weight):
        self.weight = weight

@sg.data_oriented
class AppliesDouble:
    @sg.func
    def apply(self, v):
        return v * 2.0

@sg.data_oriented
class AppliesHalve:
    @sg.func
    def apply(self, v):
        return v * 0.5

@sg.data_oriented
class AppliesShift:
    @sg.func
    def apply(self, v):
        return v + 3.0

x, y = sg.field(sg.f32, {size}), sg.field(sg.f32, {size})
{lines}

def make({closures}):
    @sg.data_oriented
    class Model:
{early}
        def __init__(self):
{init}
        @sg.kernel
        def run(self{parameters}):
            for i in x:
                s = 0.0
{body}
                y[i] = s
    return Model()

{first}
make({held}).run({passed})
result = y.to_numpy()
"""
HELPER = """import numpy as np
import spirograd as sg

@sg.func
def double(v):
    return v * 2.0

@sg.func
def halve(v):
    return v * 0.5

@sg.func
def shift(v):
    return v + 3.0

"""


@dataclass(frozen=True)
class Program:
    """The versions of a program, which one process after the other runs."""

    versions: tuple[Version, ...]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.versions))


def write(seed: int) -> Program:
    """The program of a seed: some versions, each an edit of an earlier one."""
    r = random.Random(seed)
    names = r.choices(list(CATALOGUE), k=r.randrange(3, 8))
    first = Version(tuple([(name, CATALOGUE[name].draw(r)) for name in names]), zeros=r.random() < 0.3)
    versions = [first]
    for _ in range(r.randrange(4, 7)):
        versions.append(edited(r.choice([versions[-1], versions[-1], r.choice(versions)]), r))
    return Program(tuple(versions))


def edited(version: Version, r: random.Random) -> Version:
    """An edit of a version: mostly of one value, such that the text of the kernel stays."""
    ingredients = list(version.ingredients)
    k = r.randrange(len(ingredients))
    name = ingredients[k][0]
    kind = r.random()
    if kind < 0.7:
        ingredients[k] = name, CATALOGUE[name].draw(r)
    elif kind < 0.8:
        others = [j for j, (other, _) in enumerate(ingredients) if CATALOGUE[other].draw is CATALOGUE[name].draw]
        j = r.choice(others)  # two values are exchanged
        ingredients[k], ingredients[j] = (name, ingredients[j][1]), (ingredients[j][0], ingredients[k][1])
    elif kind < 0.87:
        return replace(version, blank=r.randrange(3))
    elif kind < 0.94:
        return replace(version, size=r.choice([4, 5, 9]))
    else:
        other = r.choice(list(CATALOGUE))
        ingredients[k] = other, CATALOGUE[other].draw(r)
    return replace(version, ingredients=tuple(ingredients))
