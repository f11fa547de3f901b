"""Random loops whose accesses are behind guards: no pass makes an access that the program does not make."""

from __future__ import annotations

import pytest
from cases import seeds

from . import guarded_programs, run


@pytest.mark.archs("interpreter", "cpu", "vulkan")
@pytest.mark.parametrize("seed", seeds(30, 1000))
def test_guards(seed: int, arch: str) -> None:
    guarded_programs.check(guarded_programs.Program(seed), (arch,))


def test_an_access_that_a_pass_adds_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from spirograd.transforms.tasks import reductions

    head = "@sg.kernel\ndef work(x: sg.types.NDArray[sg.f32, 1], k: sg.i32):\n"
    source = f"{head}    for i in range(9):\n        if k < 6:\n            x[k] += 1\n"
    for tolerant in (False, True):
        monkeypatch.setattr(reductions, "_tolerates", lambda target, answer=tolerant: answer)
        with run.session("interpreter as cpu", tolerant):
            x = run.sg.ndarray(run.sg.f32, 6)
            work = run.load(source, {}, "work")
            if not tolerant:
                work(x, 6)
                assert not x.to_numpy().any()
                continue
            with pytest.raises(run.sg.SpirogradAssertionError, match=r"index \(6\) is out of range of x of shape \(6\)") as caught:
                work(x, 6)
                run.sg.sync()
            assert "x[k] += 1" in str(caught.value)
