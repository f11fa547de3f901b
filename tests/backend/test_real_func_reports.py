"""What kernels with functions of `@real_func` report: errors, failed checks, prints; their IR as text and in the cache."""

import pytest

import spirograd as sg
from spirograd.ir.text import parse, to_text

pytestmark = pytest.mark.vulkan_or_wgpu


def test_errors_in_functions_have_the_chain_of_calls(session) -> None:
    @sg.real_func
    def wrong(a: sg.f32) -> sg.f32:
        return a + missing  # noqa: F821 -- that is the point

    @sg.kernel
    def run(a: sg.f32) -> sg.f32:
        return wrong(a)

    with pytest.raises(sg.SpirogradNameError, match="`missing` is not defined") as caught:
        run(1.0)
    assert "return a + missing" in str(caught.value)
    assert "return wrong(a)" in str(caught.value)


def test_checks_in_functions_name_line_and_call(arch) -> None:
    sg.init(arch=arch, debug=True)

    @sg.real_func
    def positive(a: sg.i32) -> sg.i32:
        assert a > 0, f"not positive: {a}"
        return a

    @sg.real_func
    def looked_up(k: sg.i32) -> sg.i32:
        t = sg.Vector([1, 2, 3])
        return t[k]

    @sg.kernel
    def run(a: sg.i32) -> sg.i32:
        return positive(a) + 1

    @sg.kernel
    def look(k: sg.i32) -> sg.i32:
        return looked_up(k)

    assert run(1) == 2
    with pytest.raises(sg.SpirogradAssertionError, match="not positive: -1") as caught:
        run(-1)
        sg.sync()
    assert "assert a > 0" in str(caught.value) and "return positive(a) + 1" in str(caught.value)
    assert look(2) == 3
    with pytest.raises(sg.SpirogradAssertionError) as caught:
        look(3)
        sg.sync()
    assert "return t[k]" in str(caught.value) and "return looked_up(k)" in str(caught.value)


def test_prints_in_functions(session, capfd) -> None:
    @sg.real_func
    def shown(a: sg.i32) -> sg.i32:
        print("a is", a)
        return a + 1

    @sg.kernel
    def run() -> sg.i32:
        return shown(4)

    assert run() == 5
    sg.sync()
    assert "a is 4" in capfd.readouterr().out


def test_the_text_of_the_ir(session) -> None:
    @sg.real_func
    def pair(a: sg.f32, n: sg.i32):
        return a * n, n + 1

    @sg.kernel
    def run(a: sg.f32) -> sg.f32:
        u, v = pair(a, 2)
        return u + v

    assert run(1.5) == 6
    for stage in ("kernel", "offload", "device"):
        if stage in {name.split(".")[0] for name in run.stages()}:
            text = run.ir(stage)
            assert 'function "pair.1"' in text
            assert to_text(parse(text)) == text


def test_the_cache_has_kernels_with_functions(arch, tmp_path) -> None:
    def total() -> float:
        sg.init(arch=arch, offline_cache=True, offline_cache_file_path=str(tmp_path))

        @sg.real_func
        def square(a: sg.f32) -> sg.f32:
            return a * a

        @sg.kernel
        def run(a: sg.f32) -> sg.f32:
            return square(a) + square(a + 1)

        return run(2.0)

    assert total() == 13
    files = sorted(tmp_path.rglob("*"))
    sg.reset()
    assert total() == 13
    assert sorted(tmp_path.rglob("*")) == files
