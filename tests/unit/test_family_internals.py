"""What programs of the family take from below its surface: types, counts of kernels, what the machine has, colours."""

from __future__ import annotations

import importlib
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")


@pytest.fixture(params=["taichi", "quadrants"])
def family(request: pytest.FixtureRequest) -> str:
    return f"spirograd.compat.{request.param}"


def module(family: str, path: str) -> Any:
    return importlib.import_module(f"{family}.{path}")


@pytest.fixture
def runtime(family: str) -> Any:
    importlib.import_module(family).init(arch=sg.cpu)
    yield module(family, "lang.impl").get_runtime()
    sg.reset()


def test_types(family: str) -> None:
    types, util = module(family, "types.primitive_types"), module(family, "lang.util")
    assert types.real_types == {sg.f16, sg.f32, sg.f64, float}
    assert types.all_types == types.real_types | types.integer_types
    assert types.type_ids == {id(t) for t in types.all_types}
    assert types.type_ids == types.real_type_ids | types.integer_type_ids
    for t, of_numpy in ((sg.f32, np.float32), (sg.i64, np.int64), (sg.u8, np.uint8), (sg.u1, np.bool_)):
        assert util.to_numpy_type(t) is of_numpy
        assert util.to_taichi_type(of_numpy) is util.to_quadrants_type(np.dtype(of_numpy)) is t
    assert [util.cook_dtype(t) for t in (int, float, bool, sg.i8)] == [sg.i32, sg.f32, sg.u1, sg.i8]
    with pytest.raises(ValueError, match="'abc' is no data type"):
        util.cook_dtype("abc")
    with pytest.raises(AssertionError, match="'abc' is no data type"):
        util.to_taichi_type("abc")


@pytest.mark.needs("torch")
def test_types_of_torch(family: str) -> None:
    util = module(family, "lang.util")
    assert util.has_pytorch()
    for t, of_torch in ((sg.f32, torch.float32), (sg.i64, torch.int64), (sg.u1, torch.bool)):
        assert util.to_pytorch_type(t) is of_torch
        assert util.to_quadrants_type(of_torch) is t


def test_default_types_can_be_set(family: str, runtime: Any) -> None:
    assert (runtime.default_fp, runtime.default_ip, runtime.default_up) == (sg.f32, sg.i32, sg.u32)
    runtime.set_default_fp(sg.f64)
    runtime.default_ip = sg.i64

    @sg.kernel
    def third(x: float) -> float:
        return x / 3

    @sg.kernel
    def large() -> int:
        return 2**40

    assert third(1.0) == 1 / 3
    assert large() == 2**40
    assert sg.field(float, shape=1).dtype is sg.f64
    assert (runtime.default_up, sg.cfg.default_fp, sg.cfg.default_ip) == (sg.u64, sg.f64, sg.i64)
    with pytest.raises(sg.SpirogradRuntimeError, match="`default_fp` is a floating-point type"):
        runtime.set_default_fp(sg.i32)


def test_compiled_functions_are_counted(family: str, runtime: Any) -> None:
    @sg.kernel
    def run(n: sg.template()) -> sg.i32:
        return n

    counts = [runtime.get_num_compiled_functions()]
    for n in (1, 2, 1):
        assert run(n) == n
        counts.append(runtime.get_num_compiled_functions())
    assert counts == [0, 1, 2, 2]


def test_scopes(family: str, runtime: Any) -> None:
    util = module(family, "lang.util")

    @sg.kernel
    def inside() -> sg.i32:
        return sg.static(int(util.in_python_scope()))

    assert (inside(), util.in_python_scope(), util.in_taichi_scope()) == (0, True, False)


def test_what_the_machine_has(family: str) -> None:
    core = module(family, "_lib.core")
    archs = sg.available_archs()
    for arch in ("vulkan", "cuda", "metal", "amdgpu"):
        assert getattr(core, f"with_{arch}")() is (arch in archs)
    assert not core.with_opengl() and core.GGUI_AVAILABLE
    assert (core.SNodeType.dense, core.SNodeGradType.DUAL) == (1, 2)


def test_internal_operations_are_refused_by_name(family: str, runtime: Any) -> None:
    impl = module(family, "lang.impl")

    @sg.kernel
    def nothing():
        impl.call_internal("do_nothing")

    @sg.kernel
    def something():
        impl.call_internal("insert_triplet")

    nothing()
    with pytest.raises(sg.SpirogradUnsupportedError, match="`insert_triplet`"):
        something()


def test_swizzle_patterns(family: str) -> None:
    patterns = module(family, "lang.matrix")._generate_swizzle_patterns
    assert patterns("xy", 2) == ["x", "y", "xx", "xy", "yx", "yy"]
    assert patterns("rgba", 1) == list("rgba")
    assert len(patterns("xyzw")) == 4 + 16 + 64 + 256


def test_colours(family: str) -> None:
    ti = importlib.import_module(family)
    assert ti.rgb_to_hex((0.5, 0.25, 1.5)) == 0x7F3FFF
    colours = np.random.default_rng(0).random((3, 4, 5)).astype(np.float32) * 3 - 1
    parts = (np.clip(colours, 0, 1) * np.float32(255)).astype(np.int32)
    assert (ti.rgb_to_hex(colours) == parts[0] * 65536 + parts[1] * 256 + parts[2]).all()
    assert ti.rgb_to_hex(tuple(colours)).dtype == np.int32
