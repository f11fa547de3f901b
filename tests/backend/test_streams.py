"""Streams of the session: work on several of them has the results of one. Against NumPy."""

import numpy as np
import pytest
from cases import seeds

import spirograd as sg
from spirograd.lang import context

pytestmark = pytest.mark.usefixtures("session")
LINE = sg.types.ndarray(sg.i32, ndim=1)


@sg.kernel
def mix(target: LINE, source: LINE, by: sg.i32):
    for i in target:
        target[i] = 3 * target[i] + source[i] + by


@pytest.fixture(params=["streams of the device", "one queue as several"])
def streams_of_any_device(request, monkeypatch):
    """Once as it is; on Vulkan, whose devices may have one queue only, once more with streams of one's own on the queues that there are."""
    device = context.session().device
    if request.param != "streams of the device":
        if context.session().arch != "vulkan":
            pytest.skip("for Vulkan")
        monkeypatch.setattr(device, "several_queues", True)


@pytest.mark.parametrize("seed", seeds(2, 30))
def test_stress(seed, streams_of_any_device):
    """Launches, fills, copies, reads and writes in any order on several streams over the same memory."""
    rng = np.random.default_rng(seed)
    n = 64
    arrays = [sg.ndarray(sg.i32, n) for _ in range(4)]
    fields = sg.field(sg.i32, n), sg.field(sg.i32, n)
    model = [np.zeros(n, np.int32) for _ in range(6)]
    streams = [sg.create_stream() for _ in range(3)]
    everything = [*arrays, *fields]

    @sg.kernel
    def swap():
        for i in fields[0]:
            fields[0][i], fields[1][i] = fields[1][i] + 1, fields[0][i]

    for _ in range(60):
        action, stream = rng.integers(8), [*streams, None][rng.integers(4)]
        k, j, by = int(rng.integers(4)), int(rng.integers(4)), int(rng.integers(100))
        if action < 4:
            mix(arrays[k], arrays[j], by, stream=stream)
            model[k] = 3 * model[k] + model[j] + by
        elif action == 4:
            swap(qd_stream=stream)
            model[4], model[5] = model[5] + 1, model[4]
        elif action == 5 and stream is not None:
            with stream:
                fields[k % 2].copy_from(fields[1 - k % 2])
                arrays[j].fill(by)
            model[4 + k % 2], model[j] = model[5 - k % 2].copy(), np.full(n, by, np.int32)
        elif action == 6:
            everything[k][5] = by
            model[k] = model[k].copy()
            model[k][5] = by
        elif action == 7:
            assert (everything[k + 2].to_numpy() == model[k + 2]).all()
    for memory, expected in zip(everything, model):
        assert (memory.to_numpy() == expected).all()


def test_one_after_the_other(streams_of_any_device):
    a, b, event = sg.ndarray(sg.i32, 8), sg.ndarray(sg.i32, 8), sg.create_event()
    with sg.create_stream() as one, sg.create_stream(manual=True) as other:
        mix(a, a, 1, stream=one)
        event.record(one)
        event.wait(other)
        mix(b, a, 0, stream=other)
    event.synchronize()
    assert a.to_numpy().tolist() == [1] * 8 and b.to_numpy().tolist() == [1] * 8
    other.synchronize()
    one.destroy()
    one.destroy()
    mix(a, b, 0, stream=one)  # it stands for the session's own now
    one.synchronize()
    assert a.to_numpy().tolist() == [4] * 8
    for again in range(20):  # compiled code does these
        mix(b, a, again)
    with one:
        mix(b, a, 0)
    expected = 1
    for by in (*range(20), 0):
        expected = (3 * expected + 4 + by) % 2**32
    assert b.to_numpy().view(np.uint32).tolist() == [expected] * 8


def test_prints_and_results(capsys, streams_of_any_device):
    @sg.kernel
    def total(a: LINE) -> sg.i32:
        s = 0
        for i in a:
            s += a[i]
        return s

    @sg.kernel
    def tell(a: LINE):
        print("it is", a[0])

    a, stream = sg.ndarray(sg.i32, 5), sg.create_stream()
    mix(a, a, 2, stream=stream)
    assert total(a) == 10 and total(a, stream=stream) == 10
    tell(a, stream=stream)
    stream.synchronize()
    assert capsys.readouterr().out == "it is 2\n"


def test_gradients(streams_of_any_device):
    x, loss = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def square():
        for i in x:
            loss[None] += x[i] * x[i]

    x.from_numpy(np.arange(4, dtype=np.float32))
    stream = sg.create_stream()
    with stream, sg.ad.Tape(loss):
        square()
        square()
    assert x.grad.to_numpy().tolist() == [0, 4, 8, 12]


def test_what_is_refused():
    a = sg.ndarray(sg.i32, 5)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="`stream` takes a stream, got the number 3"):
        mix(a, a, 1, stream=3)
    with pytest.raises(sg.SpirogradTypeError, match="expected a stream, got the number 3"):
        sg.create_event().record(3)
    stream, event = sg.create_stream(), sg.create_event()
    sg.init(arch=sg.cpu)
    with pytest.raises(sg.SpirogradRuntimeError, match="this stream belongs to an earlier `init`"), stream:
        pass
    with pytest.raises(sg.SpirogradRuntimeError, match="this event belongs to an earlier `init`"):
        event.record()

    @sg.kernel
    def named(stream: sg.i32) -> sg.i32:
        return stream

    assert named(stream=3) == 3 and named(stream=3, qd_stream=None) == 3


@pytest.mark.archs("vulkan")
def test_number_of_queues(arch, monkeypatch):
    for text in ("none", "0", "-1"):
        monkeypatch.setenv("SG_VULKAN_QUEUES", text)
        with pytest.raises(sg.SpirogradRuntimeError, match=f"SG_VULKAN_QUEUES must be a number of queues, 1 or more, not '{text}'"):
            sg.init(arch=arch)
    monkeypatch.setenv("SG_VULKAN_QUEUES", "4")
    sg.init(arch=arch)
    x = sg.ndarray(sg.i32, 5)
    with sg.create_stream():
        x.fill(3)
    assert x.to_numpy().tolist() == [3] * 5
