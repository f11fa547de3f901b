"""No option and no keyword is dropped in silence."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import spirograd as sg
from spirograd.config import WITHOUT_EFFECT, Config


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("check_bounds", "did you mean `check_out_of_bound`?"),
        ("ad_stack_sise", "did you mean `ad_stack_size`"),
        ("offline_cach", "did you mean `offline_cache`?"),
        ("print_irr", "did you mean `print_ir`?"),
        ("cpu_max_threads", "did you mean `cpu_max_num_threads`?"),
        ("use_the_force", ""),
        ("debug_everything", ""),
    ],
)
def test_unknown_options_of_init(name: str, near: str) -> None:
    with pytest.raises(sg.SpirogradRuntimeError) as caught:
        sg.init(arch=sg.interpreter, **{name: True})
    assert str(caught.value).startswith(f"`init` has no option `{name}`{'; ' if near else ''}{near}")


def test_options_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    for name, reason in WITHOUT_EFFECT.items():
        on, off = (2, 1) if name == "num_compile_threads" else (True, False)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "spirograd"):
            sg.init(arch=sg.interpreter, **{name: on})
        warned = [record.getMessage() for record in caplog.records]
        assert warned == ([f"the option `{name}` of `init` has no effect: {reason}"] if reason else [])
        caplog.clear()
        sg.init(arch=sg.interpreter, **{name: off})
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_option_works_or_warns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that nothing in the package reads are those that warn; from the environment, too."""
    files = list(Path(sg.__file__).parent.rglob("*.py"))
    package = "\n".join(path.read_text() for path in files if path.name != "config.py")
    own = "\n".join(path.read_text() for path in files if path.name == "config.py")  # its methods read some
    reads = (r"\b(config|cfg|options)\.{}\b", package), (r"\bself\.{}\b", own)
    unread = {f.name for f in dataclasses.fields(Config) if not any(re.search(form.format(f.name), text) for form, text in reads)}
    assert unread == {f.name for f in dataclasses.fields(Config)} & WITHOUT_EFFECT.keys() and all(WITHOUT_EFFECT[name] for name in unread)
    monkeypatch.setenv("SG_NUM_COMPILE_THREADS", "4")
    sg.init(arch=sg.interpreter)
    assert "`num_compile_threads` of `init` has no effect" in caplog.text


def test_limit_of_unrolling(caplog: pytest.LogCaptureFixture) -> None:
    for limit, warnings in ((0, 0), (7, 1), (8, 0)):
        caplog.clear()
        sg.init(arch=sg.interpreter, unrolling_limit=limit)

        @sg.kernel
        def total() -> sg.i32:
            s = 0
            for k in sg.static(range(8)):
                s += k
            return s

        assert total() == total() == 28
        assert len(caplog.records) == warnings
        assert not warnings or "unrolled 8 times: compiling takes long; the option `unrolling_limit` is 7" in caplog.text


def test_a_loop_of_many_copies_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    sg.init(arch=sg.interpreter)

    @sg.func
    def counted(n: sg.template()) -> sg.i32:
        s = 0
        for i in sg.static(range(n)):
            for _ in sg.static(range(n)):  # the loop of the warning
                for _ in sg.static(range(2)):
                    s += i
        return s

    @sg.kernel
    def total() -> sg.i32:
        return counted(20) + counted(33) + counted(33)

    assert total() == 2 * (20 * 20 * 19 // 2 + 2 * 33 * 33 * 32 // 2)
    (record,) = [record for record in caplog.records if "unrolled" in record.message]
    assert "unrolled 1089 times, 33 times in each of 33 copies of the loops around it" in record.message
    assert "# the loop of the warning" in record.message


def test_options_of_a_running_session_do_not_change() -> None:
    sg.init(arch=sg.interpreter)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"do not change: `init\(debug=True\)` starts one that has it"):
        sg.cfg.debug = True
    with pytest.raises(AttributeError, match=r"`init` has no option `debgu`; did you mean `debug`\?"):
        sg.cfg.debgu = True
    assert sg.cfg.debug is False and vars(sg.cfg) == {} and isinstance(Config().debug, bool)


def _calls() -> dict[str, Any]:
    x, loss = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def total(a: sg.f32):
        for i in x:
            loss[None] += a * x[i]

    element = sg.types.struct(a=sg.f32)
    return {
        "field": lambda o: sg.field(sg.f32, 4, **o),
        "Vector.field": lambda o: sg.Vector.field(2, sg.f32, 4, **o),
        "Matrix.field": lambda o: sg.Matrix.field(2, 2, sg.f32, 4, **o),
        "Struct.field": lambda o: sg.Struct.field({"a": sg.f32}, shape=4, **o),
        "types.struct.field": lambda o: element.field(shape=4, **o),
        "ndarray": lambda o: sg.ndarray(sg.f32, 4, **o),
        "Vector.ndarray": lambda o: sg.Vector.ndarray(2, sg.f32, 4, **o),
        "tensor": lambda o: sg.tensor(sg.f32, 4, **o),
        "Vector.tensor": lambda o: sg.Vector.tensor(2, sg.f32, 4, **o),
        "root.dense": lambda o: sg.root.dense(sg.i, 4, **o),
        "place": lambda o: sg.root.dense(sg.i, 4).place(sg.field(sg.f32), **o),
        "types.ndarray": lambda o: sg.types.ndarray(dtype=sg.f32, **o),
        "Tape": lambda o: sg.ad.Tape(loss, **o),
        "FwdMode": lambda o: sg.ad.FwdMode(loss, x, **o),
        "gradcheck": lambda o: sg.ad.gradcheck(total, 1.0, **o),
        "grad": lambda o: total.grad(1.0, **o),
        "call": lambda o: total(1.0, **o),
        "explain": lambda o: total.grad.explain(1.0, **o),
        "kernel": lambda o: sg.kernel(**o),
        "func": lambda o: sg.func(**o),
        "real_func": lambda o: sg.real_func(**o),
        "data_oriented": lambda o: sg.data_oriented(**o),
        "torch_function": lambda o: sg.ad.torch_function(total, **o),
        "to_numpy": lambda o: x.to_numpy(**o),
    }


@pytest.mark.archs("interpreter")
def test_unknown_keywords(session: Any) -> None:
    for name, call in _calls().items():
        with pytest.raises(TypeError, match="neds_grad"):
            call({"neds_grad": True})
            pytest.fail(f"`{name}` drops a keyword")
