"""`Tape.explain` lists what ends gradients, or may end them, between the kernels of a program and in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu
N = 4
CLEAN = "gradients end nowhere that the tape has seen"


@pytest.fixture
def kernels(arch: str) -> SimpleNamespace:
    """Kernels of a session that only warns of broken chains."""
    sg.init(arch=arch, ad_broken_chain="warn")
    return declared()


def declared() -> SimpleNamespace:
    """Return kernels over `x`, `y` and `loss` with gradients, and `plain` and `other` without."""
    x, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))
    plain, other = sg.field(sg.f32, N), sg.field(sg.f32, N)
    x.fill(1.5)

    @sg.kernel
    def square():
        for i in x:
            plain[i] = x[i] ** 2  # lost here

    @sg.kernel
    def relay():
        for i in x:
            other[i] = plain[i] + 1.0  # relayed here

    @sg.kernel
    def read_other():
        for i in x:
            loss[None] += other[i] * x[i]

    @sg.kernel
    def cast():
        for i in x:
            y[i] = float(int(x[i] * 3.0))

    @sg.kernel
    def stop():
        for i in x:
            y[i] = sg.stop_grad(x[i]) * x[i]

    @sg.kernel
    def take(u: sg.types.NDArray):
        for i in x:
            loss[None] += y[i] * u[i]

    @sg.kernel
    def scale(a: sg.f32):
        for i in x:
            loss[None] += a * x[i]

    return SimpleNamespace(**locals())


def explained(k: SimpleNamespace, program: Any) -> str:
    with sg.ad.Tape(k.loss) as tape:
        program()
    return tape.explain()


def test_a_whole_chain_has_no_end(kernels: SimpleNamespace) -> None:
    k = kernels
    assert explained(k, lambda: (k.scale(k.x[0]), k.x.fill(2.0), k.y.copy_from(k.x), k.scale(2.0))) == CLEAN


def test_each_kind_is_listed_with_its_line(kernels: SimpleNamespace) -> None:
    k = kernels
    hidden = sg.ad.no_grad(k.scale)
    programs = {
        "gives `plain`, which has no gradient": lambda: k.square(),
        "gives `other`, which has no gradient": lambda: (k.square(), k.relay()),
        "`other` by kernel `read_other`": lambda: (k.square(), k.relay(), k.read_other()),
        "`copy_from` gives the field `plain`": lambda: k.plain.copy_from(k.x),
        "`y` depends on differentiated values only through that": lambda: k.cast(),
        "ends derivatives on purpose, by `stop_grad`": lambda: k.stop(),
        "becomes a constant by `stop_grad`, on purpose": lambda: k.scale(sg.stop_grad(k.x[1])),
        "becomes a plain float": lambda: k.scale(float(k.x[1])),
        "Python reads the field `x` by `to_numpy`": lambda: k.x.to_numpy(),
        "Python reads the field `plain` by an index": lambda: (k.square(), k.plain[2]),
        "Python writes numbers to the field `y`": lambda: k.y.from_numpy(k.x.to_numpy()),
        "reads `u`, an array of NumPy": lambda: k.take(k.x.to_numpy()),
        "a function is not differentiated": lambda: hidden(2.0),
    }
    for text, program in programs.items():
        listed = explained(k, program).splitlines()
        at = next(number for number, line in enumerate(listed) if text in line and line[2] != " ")
        assert "test_chain_breaks.py:" in listed[at], listed
        assert "`other` by" in text or "k." in listed[at + 1] or "=" in listed[at + 1] or "hidden(" in listed[at + 1], listed


def test_numbers_that_do_not_come_back_are_no_end(kernels: SimpleNamespace) -> None:
    k = kernels
    assert explained(k, lambda: (k.y.from_numpy(np.ones(N, np.float32)), k.take(np.ones(N, np.float32)))) == CLEAN
    assert "gradients end nowhere" in explained(k, lambda: k.x.to_numpy())  # unless Python brings them back


def test_a_write_of_handed_out_memory(kernels: SimpleNamespace) -> None:
    k = kernels
    if k.x.device != "cpu":
        pytest.skip("the host cannot address the memory")
    view = k.y.to_numpy(copy=False)

    def program() -> None:
        k.stop()
        sg.sync()
        view[:] = 3.0
        k.take(np.ones(N, np.float32))

    assert "the field `y` was changed between launches" in explained(k, program)


def test_tapes_that_repeat_a_sequence_list_the_same(kernels: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # checked tapes follow none
    k = kernels

    def program() -> None:
        k.square()
        k.stop()
        k.scale(2.0)

    texts = {explained(k, program) for _ in range(5)}
    assert len(texts) == 1 and "`plain`" in texts.pop()


def test_an_error_leaves_its_explanation(session: Any) -> None:
    k = declared()
    tape = sg.ad.Tape(k.loss)
    with pytest.raises(sg.SpirogradCompilationError), tape:
        k.square()
        k.relay()
        k.read_other()
    assert "gives `other`" in tape.explain() and "`other` by kernel `read_other`" in tape.explain()


def test_detached_tensors(kernels: SimpleNamespace) -> None:
    torch = needs.package("torch")
    k = kernels
    u = torch.ones(N, requires_grad=True)
    assert "reads `u`, a detached tensor" in explained(k, lambda: k.take((2.0 * u).detach()))
    assert explained(k, lambda: k.take(u)) == CLEAN
