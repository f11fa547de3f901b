"""Arrays over the memory of a device outlive it: the memory goes when the last of them does."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.device import LendsMemory
from spirograd.lang import context
from spirograd.runtime import loader
from spirograd.runtime.allocations import Memory


def lent(memory):
    """An array over the memory, where the host can address it."""
    try:
        return memory.to_numpy(copy=False)
    except ValueError:
        pytest.skip("the host cannot address this memory")


@pytest.mark.usefixtures("session")
def test_arrays_outlive_sessions(arch):
    views, whole = [], np.arange(1 << 16, dtype=np.float32)
    for session in range(3):
        array, field = sg.ndarray(sg.f32, 1 << 16), sg.field(sg.i32, 7)
        array.from_numpy(whole + session)
        field.fill(session)
        views.append((lent(array)[::2], lent(field), np.from_dlpack(array)))
        del array, field
        sg.init(arch=arch)
    sg.ndarray(sg.f32, 1 << 16).fill(-1.0)
    sg.sync()
    for session, (view, small, exported) in enumerate(views):
        np.testing.assert_array_equal(view, (whole + session)[::2])
        np.testing.assert_array_equal(exported, whole + session)
        assert (small == session).all()
        view[0] = 5.0
        assert exported[0] == 5.0


@pytest.mark.archs("vulkan")  # where the driver would take it back
def test_the_device_goes_with_the_last_array(arch, session, monkeypatch):
    from spirograd.runtime.devices.vulkan import device as vulkan

    destroyed = []
    destroy = vulkan._destroy
    monkeypatch.setattr(vulkan, "_destroy", lambda *args: (destroy(*args), destroyed.append(args)))
    array = sg.ndarray(sg.f32, 100)
    first, second = lent(array), lent(array)
    device = weakref.ref(context.session().device)
    assert isinstance(device(), LendsMemory)
    del array, session
    sg.init(arch=arch)
    del first
    gc.collect()
    assert not destroyed
    second[:] = 2.0
    assert second.sum() == 200.0
    del second
    gc.collect()
    assert len(destroyed) == 1
    sg.init(arch=arch)  # and nothing is kept without an array
    assert len(destroyed) == 1


def test_freed_memory_stays_while_it_is_lent(arch):
    device = loader.open_device(arch)
    if not isinstance(device, LendsMemory) or device.host_view((probe := Memory(device).allocate(64)).buffer) is None:
        device.close()
        pytest.skip("memory of this device is not lent")

    class Borrower:
        kept = None

    memory, borrowers = Memory(device), [Borrower(), Borrower()]
    one = memory.allocate(1 << 12)
    for borrower in borrowers:
        device.lend(one.buffer, borrower)
    view = np.frombuffer(device.host_view(one.buffer), np.uint8)
    address = one.address
    one.free()
    for borrower in (None, borrowers.pop()):
        del borrower
        other = memory.allocate(1 << 12)
        assert other.address != address
        other.fill(0, 1 << 12, 0xFFFFFFFF)
        device.synchronize()
        assert (view == 0).all()
    borrowers.clear()
    device.synchronize()
    assert memory.allocate(1 << 12).address == address
    del probe
    device.close()


@pytest.mark.usefixtures("session")
def test_launches_and_the_host_take_turns():
    """Without a wait by the program: the host reads and writes the memory between launches, fills and copies."""
    x, y = sg.ndarray(sg.f32, 1000), sg.ndarray(sg.f32, 1000)

    @sg.kernel
    def add(to: sg.types.ndarray(), what: sg.types.ndarray()):
        for i in to:
            to[i] += what[i]

    add(x, y)  # compiles
    view, expected = lent(x), np.zeros(1000, np.float32)
    y.fill(1.0)
    for step in range(5):
        add(x, y)
        expected += 1
        np.testing.assert_array_equal(view, expected)
        view[step::7] *= 2
        expected[step::7] *= 2
        add(x, y)  # reads what the host has just written
        view[:] = view * 3
        expected = (expected + 1) * 3
        np.testing.assert_array_equal(x.to_numpy(), expected)
    x.fill(4.0)
    assert (view == 4).all()
    x.from_numpy(expected)
    np.testing.assert_array_equal(view, expected)
    x.copy_from(y)
    assert (view == 1).all()
    with sg.create_stream():
        add(x, y)
        assert (view == 2).all()
        add(x, y)
        assert (view == 3).all()


@pytest.mark.archs("vulkan")
def test_launches_wait_only_while_memory_is_lent(session):
    x = sg.field(sg.i32, 100)

    @sg.kernel
    def count():
        for i in x:
            x[i] += 1

    count()
    view, stream = lent(x), session.device._own
    count()
    assert stream.idle and (view == 2).all()
    del view
    gc.collect()
    for _ in range(2):
        count()
    assert not stream.idle, "launches are recorded, and submitted later"
    assert (x.to_numpy() == 4).all()


@pytest.mark.usefixtures("session")
def test_graphs_and_the_host_take_turns():
    x = sg.ndarray(sg.i32, 100)

    @sg.kernel
    def count(x: sg.types.ndarray()):
        for i in x:
            x[i] += 1

    count(x)
    view = lent(x)
    with sg.Graph() as graph:
        count(x)
        count(x)
    for n in range(3, 7):
        graph.launch()
        assert (view == 2 * n - 1).all()


@pytest.mark.archs("vulkan")
def test_lending_takes_a_turn(session):
    """Else a launch that has just found that no memory is lent would say so after another thread has lent some."""
    device, held = session.device, []

    class Watched(weakref.WeakKeyDictionary):
        def watch(self):
            """Whether another thread has to wait for the device."""

            def attempt():
                held.append(not device._turn.lock.acquire(blocking=False))
                if not held[-1]:
                    device._turn.lock.release()

            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join()

        def __setitem__(self, borrower, memory):
            self.watch()
            super().__setitem__(borrower, memory)

        def __len__(self):
            self.watch()
            return super().__len__()

    x, y = sg.ndarray(sg.f32, 8), sg.ndarray(sg.f32, 8)
    device._lent = Watched()
    view = lent(x)
    assert held and all(held)
    x.fill(3.0)
    y.fill(1.0)
    assert len(held) == 3 and all(held) and device._lends and (view == 3).all()
    del view
    gc.collect()
    y.fill(2.0)
    assert len(held) == 4 and all(held) and not device._lends


@pytest.mark.archs("vulkan")
@pytest.mark.parametrize("failed", [False, True])
def test_finalizers_create_no_instance(session, monkeypatch, failed):
    """The instance of a device is used again when its last array has gone; after a failure it is destroyed, and another one is idle."""
    from spirograd.runtime.devices.vulkan import instance

    monkeypatch.setattr(instance, "_idle", {})
    destroyed = []
    destroy = instance.Instance.destroy
    monkeypatch.setattr(instance.Instance, "destroy", lambda self: (destroyed.append(self), destroy(self)))
    view, own = lent(sg.ndarray(sg.f32, 8)), session.device._instance
    if failed:
        session.device._trouble = "the device failed"
    del session
    sg.reset()
    assert len(instance._idle) == failed
    with monkeypatch.context() as patched:
        patched.setattr(instance.Instance, "_create", lambda self: pytest.fail("an instance was created"))
        del view
        gc.collect()
    assert len(instance._idle) == 1 and (own in destroyed) == failed == (own not in instance._idle.values())
    for idle in instance._idle.values():
        destroy(idle)
