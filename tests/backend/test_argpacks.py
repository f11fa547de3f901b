"""`types.argpack`: several arguments as one object."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

PACK = sg.types.argpack(
    a=sg.f32, n=sg.i32, v=sg.math.vec2, x=sg.types.NDArray[sg.f32, 1], inner=sg.types.argpack(s=sg.types.struct(k=sg.i32, w=sg.f32))
)


def inner(k: int, w: float) -> Any:
    made = PACK.__dataclass_fields__["inner"].type
    return made(s=sg.types.struct(k=sg.i32, w=sg.f32)(k=k, w=w))


@sg.func
def weight(p: Any) -> sg.f32:
    return p.inner.s.w * p.inner.s.k


@sg.kernel
def run(p: PACK, factor: sg.f32) -> sg.f32:
    for i in p.x:
        p.x[i] += factor * p.n + p.v[1]
    return p.a + weight(p)


def test_members_change_between_launches(session: Any) -> None:
    x, other = sg.ndarray(sg.f32, 5), np.zeros(3, np.float32)
    p = PACK(a=1.5, n=2, v=sg.math.vec2(0, 4), x=x, inner=inner(3, 0.5))
    assert run(p, 10.0) == 3.0
    p.n, p.a = 3, 2.5
    p.inner.s = sg.types.struct(k=sg.i32, w=sg.f32)(k=4, w=1.0)
    assert run(p, 10.0) == 6.5
    assert x.to_numpy().tolist() == [24 + 34] * 5
    p.x = other
    run(p, 1.0)
    assert other.tolist() == [7.0] * 3
    assert p.keys == ["a", "n", "v", "x", "inner"] and dict(p.items)["n"] == 3 and isinstance(p, sg.ArgPack)
    assert list(p.to_dict()["inner"]) == ["s"]


def test_gradients(session: Any) -> None:
    pack = sg.types.argpack(x=sg.types.NDArray[sg.f32, 1], c=sg.f32)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def squares(p: pack):
        for i in p.x:
            loss[None] += p.c * p.x[i] ** 2

    x = sg.ndarray(sg.f32, 4, needs_grad=True)
    x.from_numpy(np.arange(4, dtype=np.float32))
    with sg.ad.Tape(loss):
        squares(pack(x=x, c=3.0))
    assert x.grad.to_numpy().tolist() == [0, 6, 12, 18]


def test_mistakes(session: Any) -> None:
    pack = sg.types.argpack(near=sg.f32, far=sg.f32)
    for members, match in (({"near": 1.0}, "no value for `far`"), ({"near": 1.0, "faar": 2.0}, "no member `faar`; did you mean `far`")):
        with pytest.raises(sg.SpirogradCallError, match=match):
            pack(**members)

    @sg.kernel
    def depth(p: pack) -> sg.f32:
        return p.far - p.near

    assert depth(pack(near=1.0, far=3.0)) == 2.0
    with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"`p\.far` takes a number"):
        depth(pack(near=1.0, far="3"))
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="an instance of ArgPack"):
        depth(sg.types.argpack(near=sg.f32, far=sg.f32)(near=1.0, far=3.0))
