"""Programs of the family, unchanged, on spirograd; what they replace below its surface."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spirograd.compat.quadrants as qd
from spirograd.compat import stand_in

PROGRAM = """
import os
import sys
import {member} as ti
from {member}.math import vec2
import beside
ti.init(arch=ti.cpu)
@ti.kernel
def run() -> float:
    return vec2(1, 2).sum() + beside.value
print(__name__, sys.argv[1:], run(), ti.__version__, os.path.isabs(__file__))
"""


@pytest.mark.parametrize(("member", "version"), [("taichi", (1, 7, 4)), ("quadrants", (1, 4, 0))])
@pytest.mark.parametrize("as_module", [False, True])
def test_a_program_runs_in_place(tmp_path: Path, member: str, version: tuple[int, ...], as_module: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(member=member))
    (tmp_path / "beside.py").write_text("value = 4")
    command = [sys.executable, "-m", f"spirograd.compat.{member}", *(["-m", "program"] if as_module else ["program.py"]), "-m", "--x=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"__main__ ['-m', '--x=1'] 7.0 {version} True", done.stderr


def test_a_member_that_is_already_imported_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from spirograd.compat import stand_in

    monkeypatch.setitem(sys.modules, "taichi", logging)
    with pytest.raises(RuntimeError, match="taichi is already imported"):
        stand_in.replace("taichi")


@pytest.fixture
def deferred_fills(monkeypatch: pytest.MonkeyPatch):
    """A program that fills fields when they are there: its list of fields and values."""
    from spirograd.compat.quadrants.lang import impl

    from spirograd.lang import context

    pending, before, clear = [], impl.PyQuadrants.materialize, impl.PyQuadrants.clear

    def materialize(self):
        before(self)
        fields = pending.copy()
        pending.clear()
        for field, value in fields:
            field.fill(value)
        if fields:
            self.prog.synchronize()

    def forget(self):
        clear(self)
        pending.clear()

    impl.PyQuadrants.materialize, impl.PyQuadrants.clear = materialize, forget
    yield pending
    impl.PyQuadrants.materialize, impl.PyQuadrants.clear = before, clear
    context.services().after_allocation = None
    qd.reset()


@pytest.mark.parametrize("use", ["kernel", "element", "array", "dlpack"])
def test_a_replaced_materialize_runs_before_fields_are_used(deferred_fills, use: str) -> None:
    qd.init(arch=qd.cpu)
    for value in (3.0, 4.0):
        x, y = qd.field(qd.f32, shape=()), qd.field(qd.f32, shape=4)
        deferred_fills += [(x, value), (y, 2.0)]

        @qd.kernel
        def total(x: qd.template(), y: qd.template()) -> qd.f32:
            return x[None] + y[1]

        found = {
            "kernel": lambda x, y, total=total: total(x, y),
            "element": lambda x, y: x[None] + y[1],
            "array": lambda x, y: x.to_numpy() + y.to_numpy()[1],
            "dlpack": lambda x, y: np.from_dlpack(x) + np.from_dlpack(y)[1],
        }[use](x, y)
        assert found == value + 2
        assert not deferred_fills
    deferred_fills.append((qd.field(qd.f32, shape=()), 1.0))
    qd.reset()
    assert not deferred_fills


def test_functions_that_replace_those_of_logging_get_the_messages(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    got: list[str] = []
    logger = logging.getLogger("spirograd")
    logger.warning("one %d", 1)
    monkeypatch.setattr(qd._logging, "warn", got.append)
    logger.warning("two %d", 2)
    qd._logging.error("three")
    assert got == ["two 2"]
    assert [r.getMessage() for r in caplog.records] == ["one 1", "three"]
    assert qd._logging._get_logging(qd._logging.DEBUG) is qd._logging.debug
    assert qd._logging.WARN == "warn"


def test_a_program_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "replace", lambda member: None)
    with pytest.raises(SystemExit) as stopped:
        stand_in.main("taichi", ["nowhere.py"])
    assert stopped.value.code == 2 and "there is no file nowhere.py" in capsys.readouterr().err
