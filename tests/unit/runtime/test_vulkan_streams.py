"""Streams of Vulkan beside the device's own, as the runtime uses them. On a device with one queue they share it. Against NumPy."""

import numpy as np
from unit.runtime.spirv_modules import compiled

from spirograd.base.arguments import Arguments
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher


def words(allocation):
    raw = bytearray(allocation.nbytes)
    allocation.read_into(0, memoryview(raw))
    return np.frombuffer(raw, np.uint32)


def test_work_is_in_order_where_it_was_asked_for(vulkan):
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("scale", "scale"))
    n = 20_000
    a = memory.allocate(4 * n)
    sides = [vulkan.new_stream() for _ in range(3)]
    expected, at = np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32)
    before = None
    for step in range(40):
        stream = [None, *sides][step * 7 % 4]
        if step % 5 == 4:
            vulkan.wait_for_event(vulkan.record_event(before), stream)
        else:
            vulkan.order_streams(before, stream)
        with vulkan.on_stream(stream):
            plan.launch(Arguments.of([None, n, step], [None] * 3, {0: a}))
        for _ in range(2):
            expected = expected * 2 + np.uint32(step) + at
        before = stream
    vulkan.order_streams(before, None)
    assert (words(a) == expected).all()
    assert all(map(vulkan.stream_done, (None, *sides)))


def test_waits_for_one_stream(vulkan):
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a, side, waits = memory.allocate(4), vulkan.new_stream(), vulkan.waits
    vulkan.finish_event(vulkan.record_event(side))  # of a stream without work
    vulkan.order_streams(None, side)  # which sets the memory to zero
    for _ in range(100):  # more than one submission
        with vulkan.on_stream(side):
            plan.launch(Arguments.of([None, 3, 2], [None] * 3, {0: a}))
    event = vulkan.record_event(side)
    vulkan.finish_event(event)
    vulkan.finish_stream(side)
    assert vulkan.stream_done(side) and vulkan.waits == waits + 3
    assert words(a)[0] == 600
    vulkan.delete_stream(side)
    assert vulkan.new_stream() is side


def test_memory_is_not_used_again_before_streams_are_done_with_it(vulkan):
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("scale", "scale"))
    n = 100_000
    side = vulkan.new_stream()
    for step in range(5):
        a = memory.allocate(4 * n)
        address = a.address
        vulkan.order_streams(None, side)
        with vulkan.on_stream(side):
            plan.launch(Arguments.of([None, n, step], [None] * 3, {0: a}))
        del a
        b = memory.allocate(4 * n)
        assert not words(b).any()
        assert b.address != address or vulkan.stream_done(side)
        del b
    vulkan.synchronize()
    assert not vulkan._sides.busy
