"""Chains of derivatives that memory without a gradient breaks: `init(ad_broken_chain=...)`, and the family's default."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import spirograd as sg
import spirograd.compat.quadrants as qd
import spirograd.compat.taichi as ti

pytestmark = pytest.mark.vulkan_or_wgpu

N = 4


def broken() -> list[tuple[str, Any]]:
    """Programs with a break, by the start of the message: each returns the gradients of x, where the path without break has slope 1."""
    x, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    plain = sg.field(sg.f32, N)
    x.from_numpy(np.arange(1.0, N + 1, dtype=np.float32))

    @sg.kernel
    def first():
        for i in x:
            plain[i] = x[i] ** 2

    @sg.kernel
    def second():
        for i in x:
            loss[None] += plain[i] + x[i]

    @sg.kernel
    def both():
        for i in x:
            plain[i] = x[i] ** 2
        for i in x:
            loss[None] += plain[i] + x[i]

    @sg.kernel
    def result() -> sg.f32:
        for i in x:
            loss[None] += x[i]
        return x[0] * 2.0

    def in_two() -> None:
        with sg.ad.Tape(loss):
            first()
            second()

    def in_one() -> None:
        with sg.ad.Tape(loss):
            both()

    def returned() -> None:
        with sg.ad.Tape(loss):
            result()

    def run(program: Any) -> Any:
        def call() -> Any:
            program()
            return x.grad.to_numpy()

        return call

    return [("gradients end at", run(in_two)), ("gradients end at", run(in_one)), ("kernel `result` returns", run(returned))]


def test_an_error_by_default(session: Any) -> None:
    for message, program in broken():
        with pytest.raises(sg.SpirogradCompilationError, match=message):
            program()


def test_a_warning(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    for init in (qd.init, ti.init, lambda **options: sg.init(ad_broken_chain="warn", **options)):
        init(arch=arch)
        for message, program in broken():
            caplog.clear()
            with caplog.at_level(logging.WARNING, "spirograd"):
                np.testing.assert_array_equal(program(), np.ones(N))
                program()  # warns once
            assert caplog.text.count(message) == 1 and "test_broken_chains.py:" in caplog.text


def test_nothing(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    sg.init(arch=arch, ad_broken_chain="ignore")
    with caplog.at_level(logging.WARNING, "spirograd"):
        for _, program in broken():
            np.testing.assert_array_equal(program(), np.ones(N))
    assert not caplog.text


@pytest.mark.archs("cpu", "interpreter")
def test_a_kernel_without_gradient(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    qd.init(arch=arch)
    x, plain, count = qd.field(qd.f32, N, needs_grad=True), qd.field(qd.f32, N), qd.field(qd.i32, N)

    @qd.kernel
    def writes_plain():
        for i in x:
            plain[i] = x[i] * 2.0

    @qd.kernel
    def writes_integers():
        for i in count:
            count[i] = i

    for kernel in (writes_plain, writes_integers):
        kernel()
        with caplog.at_level(logging.WARNING, "spirograd"):
            kernel.grad()
        assert f"kernel `{kernel.__name__}` has no gradient" in caplog.text
    assert not x.grad.to_numpy().any()


@pytest.mark.archs("cpu", "interpreter")
def test_tangents(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    def tangents() -> float:
        x, loss = sg.field(sg.f32, (), needs_dual=True), sg.field(sg.f32, (), needs_dual=True)
        plain = sg.field(sg.f32, ())

        @sg.kernel
        def first():
            plain[None] = x[None] * 3.0

        @sg.kernel
        def second():
            loss[None] = plain[None] + 2.0 * x[None]

        with sg.ad.FwdMode(loss=loss, param=x):
            first()
            second()
        return float(loss.dual[None])

    sg.init(arch=arch)
    with pytest.raises(sg.SpirogradRuntimeError, match="tangents end there"):
        tangents()
    qd.init(arch=arch)
    with caplog.at_level(logging.WARNING, "spirograd"):
        assert tangents() == 2.0
    assert "tangents end there" in caplog.text


@pytest.mark.archs("interpreter")
def test_other_values(arch: str) -> None:
    with pytest.raises(sg.SpirogradRuntimeError, match="`ad_broken_chain` is one of 'error', 'warn', 'ignore', not 'no'"):
        sg.init(arch=arch, ad_broken_chain="no")
