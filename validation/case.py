"""What a case of the corpus is: a program of the language, with what NumPy says about its results."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Name of a result -> (what the kernel computed, what it should be).
Results = dict[str, tuple[Any, Any]]
# What a case may need of a device -> the field of Capabilities; everything else has to run everywhere.
NEEDS = {"i64": "computes_int64", "f64": "float64", "atomic_i64": "updates_int64"}


@dataclass(frozen=True, slots=True)
class Case:
    """``run(*args)`` builds inputs, runs kernels in the current session, and returns `Results`.

    ``needs``: keys of `NEEDS`. ``rtol`` and ``atol``: how far floats may be off, and why is said where they are not the default: single
    precision, a few operations. ``large``: too much work for the interpreter. ``options``: of `init`.
    """

    name: str
    run: Callable[..., Results]
    args: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()
    rtol: float = 1e-5
    atol: float = 1e-6
    large: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def place(self) -> str:
        """File and line of the program."""
        return f"{inspect.getsourcefile(self.run)}:{self.run.__code__.co_firstlineno}"

    def wrong(self, results: Results) -> str:
        """What is not as it should be; "" if everything is."""
        for name, (got, want) in results.items():
            try:
                compare = np.testing.assert_allclose if np.asarray(want).dtype.kind == "f" else np.testing.assert_array_equal
                tolerance = {"rtol": self.rtol, "atol": self.atol} if compare is np.testing.assert_allclose else {}
                compare(np.asarray(got), np.asarray(want), err_msg=name, **tolerance)
            except AssertionError as error:
                return " ".join(str(error).split())[:400]
        return ""


def case(
    over: Iterable[Any] = ((),),
    *,
    needs: Callable[..., Iterable[str]] | Iterable[str] = (),
    rtol: float | Callable[..., float] = 1e-5,
    atol: float | Callable[..., float] = 1e-6,
    large: bool = False,
    **options: Any,
) -> Callable[[Callable[..., Results]], list[Case]]:
    """Make cases of a function: one for each member of ``over``, which are its arguments.

    ``needs`` and the tolerances may be functions of the arguments, too. Names are those of the function and its arguments.
    """

    def decorate(function: Callable[..., Results]) -> list[Case]:
        cases = []
        for given in over:
            args = given if isinstance(given, tuple) else (given,)
            label = "_".join([function.__name__, *[getattr(a, "name", None) or getattr(a, "__name__", str(a)) for a in args]])
            wanted = tuple(needs(*args) if callable(needs) else needs)
            limits = [limit(*args) if callable(limit) else limit for limit in (rtol, atol)]
            cases.append(Case(label, function, args, wanted, limits[0], limits[1], large, tuple(options.items())))
        return cases

    return decorate


def type_needs(t: Any, *_: Any) -> tuple[str, ...]:
    """What values of type ``t`` need."""
    return {"i64": ("i64",), "u64": ("i64",), "f64": ("f64",)}.get(t.name, ())


def precision(t: Any, *_: Any) -> float:
    """A few roundings of type ``t``."""
    return {"f16": 4e-3, "f32": 1e-5, "f64": 1e-12}.get(t.name, 1e-5)


def load() -> list[Case]:
    """All cases, by theme (the files of `corpus`, in alphabetical order)."""
    from validation import corpus

    found: list[Case] = []
    for module in sorted(pkgutil.iter_modules(corpus.__path__), key=lambda m: m.name):
        for value in vars(importlib.import_module(f"{corpus.__name__}.{module.name}")).values():
            if isinstance(value, list) and value and isinstance(value[0], Case):
                found += value
    names = [c.name for c in found]
    assert len(names) == len(set(names)), "two cases have one name"
    return found
