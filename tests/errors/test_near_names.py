"""Attributes that are not there: the error names those that are like it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import spirograd as sg
import spirograd.compat.quadrants as qd
import spirograd.compat.taichi as ti

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter")]


@sg.kernel
def kernel():
    pass


@sg.func
def function():
    pass


def holders() -> dict[str, Any]:
    element = sg.types.struct(member=sg.f32)
    return {
        "root": sg.root,
        "node": sg.root.dense(sg.i, 3),
        "builder": sg.FieldsBuilder(),
        "Vector": sg.Vector,
        "Matrix": sg.Matrix,
        "Struct": sg.Struct,
        "field": sg.field(sg.f32, 3),
        "vectors": sg.Vector.field(2, sg.f32, 3),
        "structs": element.field(shape=3),
        "array": sg.ndarray(sg.f32, 3),
        "kernel": kernel,
        "gradient": kernel.grad,
        "function": function,
        "types": sg.types,
        "math": sg.math,
        "ad": sg.ad,
        "struct": element(member=1.0),
        "element": element,
        "vector": sg.Vector([1.0, 2.0]),
        "tape": sg.ad.Tape(sg.field(sg.f32, (), needs_grad=True)),
        "cfg": sg.cfg,
        "ti": ti,
        "qd": qd,
        "ti.math": ti.math,
    }


@pytest.mark.parametrize(
    ("holder", "wrong", "right"),
    [
        ("root", "dens", "dense"),
        ("node", "plac", "place"),
        ("builder", "finalise", "finalize"),
        ("Vector", "fild", "field"),
        ("Matrix", "ndaray", "ndarray"),
        ("Struct", "feld", "field"),
        ("field", "shap", "shape"),
        ("vectors", "to_nupy", "to_numpy"),
        ("structs", "memer", "member"),
        ("array", "to_nupy", "to_numpy"),
        ("kernel", "grd", "grad"),
        ("gradient", "explan", "explain"),
        ("types", "ndaray", "ndarray"),
        ("math", "clmp", "clamp"),
        ("ad", "Tap", "Tape"),
        ("struct", "memer", "member"),
        ("element", "feld", "field"),
        ("vector", "norn", "norm"),
        ("tape", "memory_reprt", "memory_report"),
        ("cfg", "debgu", "debug"),
        ("ti", "fild", "field"),
        ("qd", "fild", "field"),
        ("ti.math", "clmp", "clamp"),
    ],
)
def test_near_names(holder: str, wrong: str, right: str) -> None:
    owner = holders()[holder]
    with pytest.raises(AttributeError) as caught:
        getattr(owner, wrong)
    message = str(caught.value)
    assert f"`{wrong}`" in message and "did you mean" in message and f"`{right}`" in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message
    assert not hasattr(owner, "wibble") and getattr(owner, "wibble", 3) == 3
    with pytest.raises(AttributeError) as caught:
        owner.wibble  # noqa: B018
    assert "did you mean" not in str(caught.value)


def test_what_a_property_raises_is_not_hidden() -> None:
    class Odd(sg.Field):
        @property
        def wrong(self) -> int:
            return int(None.missing)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'missing'"):
        Odd().wrong  # noqa: B018


def test_in_kernels() -> None:
    @sg.kernel
    def made():
        v = sg.Vector.fild  # noqa: F841

    with pytest.raises(sg.SpirogradTypeError, match="the type `Vector` has no attribute `fild`") as caught:
        made()
    assert "did you mean `field`" in str(caught.value)


def test_a_traceback_says_it_once() -> None:
    program = """
        import spirograd as sg
        sg.init(arch=sg.interpreter)
        x = sg.field(sg.f32, 3)
        x.shap
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("AttributeError: the field") and last.endswith("has no attribute `shap`; did you mean `shape`?")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sum", 'NumPy\'s arrays have it: `x.to_numpy().sum()`, and `sg.algorithms.reduce(x, "add")` computes on the device'),
        ("mean", "NumPy's arrays have it: `x.to_numpy().mean()`"),
        ("T", "NumPy's arrays have it: `x.to_numpy().T`"),
    ],
)
def test_names_of_numpys_arrays(name: str, hint: str) -> None:
    for memory in (sg.field(sg.f32, 4), sg.ndarray(sg.f32, 4), sg.Vector.field(2, sg.f32, 4)):
        assert not hasattr(memory, name)
        with pytest.raises(AttributeError) as caught:
            getattr(memory, name)
        assert str(caught.value).endswith(f"has no attribute `{name}`; {hint}")
