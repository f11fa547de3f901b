"""`init` that fails: the running session goes on as if nothing had been said."""

import logging

import numpy as np
import pytest

import spirograd as sg
from spirograd import api
from spirograd import session as sessions

pytestmark = pytest.mark.usefixtures("session")

FAILURES = {
    "unknown option": {"arch": "cpu", "wrong_option": 1},
    "bad value": {"arch": "cpu", "default_fp": "f33"},
    "bad log level": {"arch": "cpu", "log_level": "loud"},
    "bad log level, other options good": {"arch": "interpreter", "debug": True, "print_full_traceback": True, "log_level": "loud"},
    "no such back end": {"arch": "abacus"},
    "a back end that is not there": {"arch": "metal"},
    "none is there": {"arch": ["metal", "metal"], "log_level": "debug"},
}


def use(x, add) -> None:
    before = x.to_numpy()
    add()
    np.testing.assert_array_equal(x.to_numpy(), before + 1)


def test_the_session_goes_on(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, pending = sg.field(sg.f32, 4), sg.field(sg.f32)
    sg.root.dense(sg.i, 8)

    @sg.kernel
    def add():
        for i in x:
            x[i] += 1

    use(x, add)
    before, level = sg.lang.context.session(), logging.getLogger("spirograd").level
    for name, options in FAILURES.items():
        with pytest.raises(sg.SpirogradError):
            sg.init(**options)
        assert sg.lang.context.session() is before and not before.closed, name
        assert logging.getLogger("spirograd").level == level, name
        assert sg.cfg.arch == arch and not sg.cfg.debug, name
        use(x, add)
    sg.root.dense(sg.i, 4).place(pending)  # the tree under construction is still there, too
    assert pending.shape == (4,)


def test_a_device_that_does_not_open(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sg.field(sg.i32, 4)

    @sg.kernel
    def add():
        for i in x:
            x[i] += 1

    def broken(*_: object, **__: object) -> None:
        raise sg.SpirogradRuntimeError("the device is lost")

    monkeypatch.setattr(sessions, "open_device", broken)
    with pytest.raises(sg.SpirogradRuntimeError, match="the device is lost"):
        sg.init(arch=arch)
    use(x, add)


def test_success_ends_the_session_before(arch: str) -> None:
    x = sg.field(sg.i32, 4)
    x.fill(1)
    before = sg.lang.context.session()
    sg.init(arch=arch, log_level="error")
    assert before.closed and sg.lang.context.session() is not before
    with pytest.raises(sg.SpirogradRuntimeError, match="earlier session"):
        x.to_numpy()


@pytest.mark.archs("cpu")
def test_fallback_is_the_cpu_with_a_warning(arch: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_LIBHIP", "/nowhere/libamdhip64.so")
    with caplog.at_level(logging.WARNING, "spirograd"):
        sg.init(arch="amdgpu", enable_fallback=True)
    assert sg.cfg.arch == "cpu" and api.available_archs()
    assert "no back end of ['amdgpu'] works here (amdgpu: HIP's runtime is not installed" in caplog.text


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("by_variable", [False, True])
def test_gpu_by_name_is_the_first_gpu_back_end_that_works(arch: str, by_variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_LIBHIP", "/nowhere/libamdhip64.so")
    monkeypatch.setattr(api, "gpu", ["amdgpu", arch])
    if by_variable:
        monkeypatch.setenv("SG_ARCH", "gpu")
    sg.init(arch="interpreter" if by_variable else "gpu")
    assert sg.cfg.arch == arch
