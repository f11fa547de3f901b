"""One process, which is its own neighbour where the domain is periodic: on every back end, compared with NumPy."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import spirograd as sg
from spirograd import distributed
from spirograd.distributed import states, world
from spirograd.distributed.transport import SingleProcess


@pytest.fixture(autouse=True)
def alone(arch: str) -> Iterator[None]:
    distributed.init(arch=arch)
    yield
    distributed.end()


def padded(whole, halo, periodic, outside):
    """``whole`` with halos: copies where the domain is periodic, else ``outside``."""
    pad = [(h, h) for h in halo] + [(0, 0)] * (whole.ndim - len(halo))
    inside = np.pad(whole, [p if around else (0, 0) for p, around in zip(pad, (*periodic, *[False] * (len(pad) - len(halo))))], mode="wrap")
    rest = [(0, 0) if around else p for p, around in zip(pad, (*periodic, *[True] * (len(pad) - len(halo))))]
    return np.pad(inside, rest, constant_values=outside)


@pytest.mark.parametrize(
    ("shape", "halo", "periodic"),
    [((7,), 3, True), ((5, 3), (2, 1), (True, False)), ((4, 3), 1, True), ((3, 2, 4), (1, 0, 2), True), ((5,), 2, False), ((1,), 1, True)],
)
@pytest.mark.parametrize("components", [1, 3])
def test_exchange(shape, halo, periodic, components):
    part = distributed.Partition(shape, halo=halo, periodic=periodic)
    assert part.owned.shape == shape == part.shape and part.processes == (1,) * len(shape)
    kind = sg.types.vector(components, sg.f32) if components > 1 else sg.f32
    tail = (components,) if components > 1 else ()
    for memory in (part.field(kind), part.ndarray(kind)):
        for step in range(2):
            whole = np.random.default_rng(step).normal(size=shape + tail).astype(np.float32)
            local = np.full(part.local_shape + tail, -1.0, np.float32)
            local[part.owned.slices_from(part.origin)] = whole
            memory.from_numpy(local)
            part.exchange(memory)
            assert np.array_equal(memory.to_numpy(), padded(whole, part.halo, part.periodic, -1.0))
            assert np.array_equal(part.to_numpy(memory), whole)


@pytest.mark.parametrize("periodic", [(True, True), (True, False), (False, False)])
def test_sums_of_halos(periodic):
    part = distributed.Partition((4, 3), halo=(2, 1), periodic=periodic)
    local = np.random.default_rng(1).integers(-9, 9, part.local_shape).astype(np.float32)
    kinds = padded(np.zeros((4, 3)), part.halo, periodic, 1.0)
    cells = padded(np.arange(12).reshape(4, 3), part.halo, periodic, 0)
    wanted = np.zeros(12, np.float32)
    np.add.at(wanted, cells[kinds == 0], local[kinds == 0])
    for memory in (part.field(sg.f32), part.ndarray(sg.f32)):
        memory.from_numpy(local)
        part.add_halos(memory)
        assert np.array_equal(part.to_numpy(memory).reshape(-1), wanted)
        owned = np.zeros(part.local_shape, bool)
        owned[part.owned.slices_from(part.origin)] = True
        left = memory.to_numpy()
        assert (left[~owned & (kinds == 0)] == 0).all() and (left[kinds == 1] == local[kinds == 1]).all()


def test_special_values_are_moved_as_they_are():
    part = distributed.Partition(4, halo=2, periodic=True)
    memory = part.field(sg.f32)
    part.from_numpy(memory, np.array([np.inf, np.nan, -0.0, 1], np.float32))
    part.add_halos(memory)
    part.exchange(memory)
    assert np.array_equal(memory.to_numpy(), np.array([-0.0, 2, np.inf, np.nan, -0.0, 2, np.inf, np.nan], np.float32), equal_nan=True)


def test_fields_have_the_indices_of_the_domain(arch):
    part = distributed.Partition((6, 4), halo=1, periodic=True)
    x = part.field(sg.i32)

    @sg.kernel
    def fill(i0: int, i1: int, j0: int, j1: int):
        for i, j in sg.ndrange((i0, i1), (j0, j1)):
            x[i, j] = 10 * i + j

    for region in (part.interior, *part.borders):
        fill(*region.flat)
    part.exchange(x)
    assert (x[0, 0], x[5, 3], x[-1, -1], x[6, 4]) == (0, 53, 53, 0)
    assert part.interior == ((1, 5), (1, 3)) and sum(region.size for region in part.borders) == 16


MISTAKES = [
    (
        lambda: distributed.Partition((4, 4), (1, 1), halo=5),
        "axis 0 of a domain of .* its halo of 5 cells is wider than the smallest block, 4 cells",
    ),
    (lambda: distributed.Partition((4, 4), halo=5), "1 process cannot divide a domain of shape .* narrower than its halo"),
    (lambda: distributed.Partition((4, 4), (2, 1)), "makes 2 blocks, and there is 1 process"),
    (lambda: distributed.Partition((4, 0)), "one to three extents above 0, not"),
    (lambda: distributed.Partition((4, 4, 4, 4)), "one to three extents"),
    (lambda: distributed.Partition((4, 4), halo=(1,)), "`halo` is a number of cells from 0 on, or 2 of them, not"),
    (lambda: distributed.Partition((4, 4), halo=-1), "`halo`"),
    (lambda: distributed.Partition((4, 4), periodic=2), "`periodic` is True or False, or 2 of them, got 2"),
    (lambda: distributed.Partition((4, 4), processes=2), "`processes` is a list of 2 numbers above 0, one for each axis, not 2"),
]


@pytest.mark.archs("cpu")
@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_bad_partitions(make, message):
    with pytest.raises(sg.SpirogradValueError, match=message):
        make()


@pytest.mark.archs("cpu")
def test_memory_that_does_not_fit():
    part = distributed.Partition((4, 4))
    with pytest.raises(sg.SpirogradValueError, match=r"has shape \(4, 4\); on this process the block with its halo has \(6, 6\)"):
        part.exchange(sg.field(sg.f32, (4, 4)))
    with pytest.raises(sg.SpirogradTypeError, match="dense fields of scalars, vectors or matrices, and ndarrays, not"):
        part.exchange(np.zeros((6, 6)))
    with pytest.raises(sg.SpirogradTypeError, match="not a view"):
        part.exchange(part.ndarray(sg.f32)[:, :])
    with pytest.raises(sg.SpirogradTypeError, match="needs a field or an ndarray"):
        part.exchange()
    x = part.field(sg.f32)
    with pytest.raises(sg.SpirogradValueError, match="same memory twice"):
        part.exchange(x, x)
    with pytest.raises(sg.SpirogradValueError, match=r"the domain is an array of shape \(4, 4\), got \(3, 4\)"):
        part.from_numpy(x, np.zeros((3, 4)))
    pending = part.start(x)
    with pytest.raises(sg.SpirogradRuntimeError, match="has not been finished"):
        part.start(x)
    pending.finish()
    with pytest.raises(sg.SpirogradRuntimeError, match="finished already"):
        pending.finish()


@pytest.mark.archs("cpu")
def test_before_init_and_bad_options():
    distributed.end()
    with pytest.raises(sg.SpirogradRuntimeError, match=r"call `sg.distributed.init\(arch=...\)` first"):
        distributed.rank()
    with pytest.raises(sg.SpirogradValueError, match="no transport 'tcp'; there are 'single', 'torch', 'mpi'"):
        distributed.init(transport="tcp")
    with pytest.raises(sg.SpirogradValueError, match="seconds above 0, got 0"):
        distributed.init(timeout=0)
    distributed.init(arch=sg.cpu)
    assert (distributed.rank(), distributed.size()) == (0, 1)
    distributed.barrier()


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("periodic", [(True, True), (False, True), (False, False)])
def test_states_have_halos_with_their_corners(tmp_path, periodic):
    part = distributed.Partition((3, 4), halo=(2, 1), periodic=periodic)
    local = np.random.default_rng(0).normal(size=part.local_shape).astype(np.float32)
    if periodic[1]:  # outside of the domain, too
        local[:, 0], local[:, -1] = local[:, -2], local[:, 1]
    x, y = part.field(sg.f32), part.ndarray(sg.f32)
    x.from_numpy(local)
    part.exchange(x)
    y.from_numpy(x.to_numpy() + 1)
    before = x.to_numpy(), y.to_numpy()
    distributed.save(tmp_path, part, {"x": x, "y": y})
    x.fill(0)
    y.fill(0)
    distributed.load(tmp_path, part, {"x": x, "y": y})
    assert all(np.array_equal(a, b) for a, b in zip(before, (x.to_numpy(), y.to_numpy())))


@pytest.mark.archs("cpu")
def test_arrays_of_numpy_are_converted_as_in_kernels():
    part = distributed.Partition(4, halo=0)
    found = []
    for memory in (part.field(sg.i32), sg.field(sg.i32, 4)):
        values = np.array([1e20, -1e20, np.nan, -2.75])
        part.from_numpy(memory, values) if not found else memory.from_numpy(values)
        found.append(memory.to_numpy().tolist())
    assert found[0] == found[1] == [2**31 - 1, -(2**31), 0, -2]


@pytest.mark.archs("cpu")
def test_repeated_exchanges_keep_nothing():
    part = distributed.Partition(4, periodic=True)
    x = part.field(sg.f32)
    part.exchange(x)
    count = weakref.getweakrefcount(x)
    for _ in range(3):
        part.exchange(x)
    assert weakref.getweakrefcount(x) == count


@pytest.mark.archs("cpu")
def test_a_partition_outlives_its_session():
    part = distributed.Partition(4, periodic=True)
    for value in (1.0, 2.0):
        distributed.init(arch=sg.cpu)
        x = part.field(sg.f32)
        x.fill(value)
        x[-1] = 0.0
        part.exchange(x)
        assert (x.to_numpy() == value).all()


@pytest.mark.archs("cpu")
def test_new_folders_are_on_the_disk_before_a_state_counts(tmp_path, monkeypatch):
    done = []
    flush, replace = states._flush, Path.replace
    monkeypatch.setattr(states, "_flush", lambda folder: (done.append(folder), flush(folder)))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("replaced"), replace(path, target))[1])
    part = distributed.Partition(4)
    folder = tmp_path / "runs" / "state"
    distributed.save(folder, part, {"x": part.field(sg.f32)})
    before = done[: done.index("replaced")]
    assert {folder / "0", folder, folder.parent, tmp_path} <= {*before} and done[-1] == folder


@pytest.mark.archs("cpu")
@pytest.mark.skipif(os.name != "posix", reason="folders are flushed on POSIX only")
@pytest.mark.parametrize(("code", "works"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_file_systems_that_cannot_flush_folders(tmp_path, monkeypatch, code, works):
    fsync = os.fsync

    def failing(opened):
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(opened)

    part = distributed.Partition(4)
    x = part.field(sg.f32)
    distributed.save(tmp_path, part, {"x": x})
    x.fill(7)
    monkeypatch.setattr(os, "fsync", failing)
    if works:
        distributed.save(tmp_path, part, {"x": x})
    else:
        with pytest.raises(sg.SpirogradRuntimeError, match=r"a state cannot be written or read: .*Input/output error"):
            distributed.save(tmp_path, part, {"x": x})
    x.fill(3)
    distributed.load(tmp_path, part, {"x": x})
    assert (part.to_numpy(x) == (7 if works else 0)).all()


@pytest.mark.archs("cpu")
def test_a_state_counts_only_with_all_its_files(tmp_path, monkeypatch):
    part = distributed.Partition(4)
    x = part.field(sg.f32)
    distributed.save(tmp_path, part, {"x": x})
    monkeypatch.setattr(states, "_write_blocks", lambda target, *rest: target.mkdir())
    with pytest.raises(sg.SpirogradRuntimeError, match="process 0 wrote `x` to another place than"):
        distributed.save(tmp_path, part, {"x": x})
    distributed.load(tmp_path, part, {"x": x})


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("tags", [1 << 15, 1 << 31])
def test_tags_tell_lanes_apart(tags):
    transport = SingleProcess(1.0)
    transport.tags = tags
    count = tags >> 10
    found = [transport.tag([lane]) for lane in range(min(count, 1000))]
    assert len({*found}) == len(found) and max(found) < tags
    transport.exchanges = 1023
    assert transport.tag([count - 1]) == tags - 1 and transport.tag([0, 1]) < tags


class Interrupted(SingleProcess):
    """Ctrl-C while messages begin (``when`` 0), or while they are waited for."""

    def __init__(self, when):
        super().__init__(300.0)
        self.when, self.waited = when, 0

    def post(self, sent, received, tag):
        if self.when == 0:
            raise KeyboardInterrupt

        def wait():
            self.waited += 1
            if self.waited == 1:
                raise KeyboardInterrupt

        return wait


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("when", [0, 1])
def test_an_interrupted_exchange(monkeypatch, when):
    """An error at the next one, which does not speak of `finish`; messages that may arrive have their memory until they have."""
    transport = Interrupted(when)
    monkeypatch.setattr(world, "_transport", transport)
    part = distributed.Partition(4, periodic=True)
    x = part.field(sg.f32)
    with pytest.raises(KeyboardInterrupt):
        part.exchange(x)
    wanted = "an earlier message failed" if when == 0 else "an error or Ctrl-C ended a halo exchange before all messages were there"
    with pytest.raises(sg.SpirogradRuntimeError, match=wanted) as raised:
        part.exchange(x)
    assert "finish" not in str(raised.value)
    if when == 1:
        distributed.init(arch=sg.cpu)
        assert transport.waited == 2
        part.exchange(part.field(sg.f32))


@pytest.mark.archs("cpu")
def test_an_exchange_that_is_interrupted_before_its_messages(monkeypatch):
    part = distributed.Partition(4, periodic=True)
    x = part.field(sg.f32)
    part.exchange(x)

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("spirograd.distributed.halo_transfers.Transfer._send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            part.exchange(x)
    with pytest.raises(sg.SpirogradRuntimeError, match="an error or Ctrl-C ended a halo exchange before"):
        part.exchange(x)
    distributed.init(arch=sg.cpu)
    part.exchange(part.field(sg.f32))
