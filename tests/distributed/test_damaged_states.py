"""States on disk that are damaged, or were altered: an error that names file and field, and memory stays as it was."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd import distributed

pytestmark = pytest.mark.archs("cpu")


class Opened:
    """Something whose unpickling would be seen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import builtins; builtins.altered_state = 1",))


@pytest.fixture(autouse=True)
def alone(arch: str) -> Iterator[None]:
    distributed.init(arch=arch)
    yield
    distributed.end()


@pytest.fixture
def state(tmp_path: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    part = distributed.Partition((3, 4), halo=1)
    memories, replicated = {"x": part.field(sg.f32)}, {"r": sg.ndarray(sg.i32, 3)}
    memories["x"].fill(2)
    replicated["r"].fill(3)
    distributed.save(tmp_path, part, memories, replicated, {"step": 3, "loss": float("nan")})
    memories["x"].fill(7)
    return part, memories, replicated


MANIFESTS: dict[str, Any] = {
    "`number`": {"number": "../../etc"},
    r"`number` is missing, or not what": {"number": -1},
    "`shape`": {"shape": [3, "4"]},
    "`halo`": {"halo": 1},
    "`halo` has 1 axes": {"halo": [1]},
    "`periodic`": {"periodic": [0, 1]},
    "`blocks`": {"blocks": [[[0, 3]], 4]},
    r"`blocks\[0\]` has 1 axes": {"blocks": [[[0, 3]]]},
    "`blocks` is": {"blocks": [[[0, 1 << 80], [0, 4]]]},
    "`memories`": {"memories": {"x": "f32"}},
    "`memories` is": {"memories": {"../x": {"dtype": "f32", "element_shape": []}}},
    "`replicated`": {"replicated": []},
    "`values`": {"values": None},
    "`format`": {"format": "1"},
}


@pytest.mark.parametrize("message", MANIFESTS)
def test_manifests(tmp_path: Path, state: Any, message: str) -> None:
    file = tmp_path / "state.json"
    plain = json.loads(file.read_text()) | MANIFESTS[message]
    file.write_text(json.dumps(plain))
    with pytest.raises(sg.SpirogradDamagedError, match=rf"state\.json is damaged: {message}"):
        distributed.load(tmp_path, *state)
    with pytest.raises(sg.SpirogradDamagedError, match=rf"state\.json is damaged: {message}"):
        distributed.save(tmp_path, *state)
    del plain[next(iter(MANIFESTS[message]))]
    file.write_text(json.dumps(plain))
    with pytest.raises(sg.SpirogradDamagedError, match="is missing"):
        distributed.load(tmp_path, *state)
    assert (state[1]["x"].to_numpy() == 7).all()


def test_manifests_that_are_no_json(tmp_path: Path, state: Any) -> None:
    for text in ("", "[]", "{", '{"format": 1, "format": 1}', "[" * 100_000):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(sg.SpirogradDamagedError, match=r"state\.json is damaged"):
            distributed.load(tmp_path, *state)


@pytest.mark.parametrize("name", ["x-0.npy", "r.npy"])
def test_arrays(tmp_path: Path, state: Any, name: str) -> None:
    file = tmp_path / "0" / name
    whole = file.read_bytes()
    found = np.load(file)
    objects = np.empty(found.shape, object)
    objects[...] = Opened()
    header = whole.replace(b"(", b"(9", 1)  # more elements than the file has
    for damaged in (b"", whole[:20], whole[:-1], header, b"PK\x03\x04", pickle.dumps(Opened())):
        file.write_bytes(damaged)
        with pytest.raises(sg.SpirogradDamagedError, match=rf"{name} is damaged: it is"):
            distributed.load(tmp_path, *state)
    for other in (found.astype(np.float64), found[1:], found.astype(np.complex64), objects):
        np.save(file, other)
        with pytest.raises(sg.SpirogradDamagedError, match=rf"{name} is damaged: it is"):
            distributed.load(tmp_path, *state)
    file.write_bytes(whole)
    values = distributed.load(tmp_path, *state)
    assert values["step"] == 3 and np.isnan(values["loss"])
    assert (state[1]["x"].to_numpy() == 2).all() and (state[2]["r"].to_numpy() == 3).all()
    assert "altered_state" not in vars(__import__("builtins"))
