"""Messages on one process: a stand-in for a transport sends back what it gets, as a neighbour would that is a mirror image. On CUDA it
takes tensors, and works on torch's stream, as NCCL does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import spirograd as sg
from spirograd import distributed
from spirograd.distributed import world
from spirograd.distributed.transport import SingleProcess, TransportFailure
from tests.distributed.test_cells import halo_cells, neighbours


class Mirror(SingleProcess):
    """Process 0 of 2, whose neighbour has the same block, and computes the same."""

    size = 2

    def __init__(self, on_gpu: bool) -> None:
        super().__init__(1.0)
        self.takes_gpu = on_gpu
        self.posted = 0

    def post(self, sent, received, tag):
        self.posted += len(sent)

        def wait():
            for (_, source), (_, target) in zip(sent, received):
                assert isinstance(target, np.ndarray) != self.takes_gpu
                target[...] = source

        return wait

    def all_reduce(self, array, op):
        if op == "add":
            array *= 2

    def all_gather(self, value):
        return [value, value]


@pytest.mark.archs("cpu")
def test_a_session_on_the_cpu_after_one_on_cuda(session, monkeypatch):
    mirror = Mirror(True)
    mirror.name, mirror.timeout = "single", 300.0
    monkeypatch.setattr(world, "_transport", mirror)
    distributed.init(arch=sg.cpu)
    assert distributed.world.transport() is mirror and not mirror.takes_gpu


@pytest.mark.archs("cpu")
def test_nccl_that_does_not_start(session, monkeypatch):
    class Broken(Mirror):
        def gpu(self, ordinal):
            return "a"

        def all_gather(self, value):
            return [value, "b" if value == "a" else value]

        def use_gpu(self, ordinal):
            raise TransportFailure("no link")

    broken = Broken(False)
    monkeypatch.setattr(world, "_transport", broken)
    cuda = SimpleNamespace(arch="cuda", sharing=SimpleNamespace(ordinal=0))
    monkeypatch.setattr(world, "context", SimpleNamespace(session=lambda: cuda))
    with pytest.raises(sg.SpirogradRuntimeError, match=r"process 0 of 2 failed in `sg.distributed.init`: .*\(no link\)"):
        world._use_gpu(broken)


@pytest.mark.archs("cpu")
def test_discarding_goes_on_after_an_error(session, monkeypatch):
    class Failing(Mirror):
        def post(self, sent, received, tag):
            number = self.exchanges

            def wait():
                waited.append(number)
                if number == 1:
                    raise TransportFailure("no link")

            return wait

    waited = []
    monkeypatch.setattr(world, "_transport", Failing(False))
    part = distributed.Partition(8)
    pending = [part.start(part.field(sg.f32)) for _ in range(2)]
    with pytest.raises(sg.SpirogradRuntimeError, match="no link"):
        world.open_transfers.discard_all()
    assert waited == [1, 2]
    for one in pending:
        with pytest.raises(sg.SpirogradRuntimeError, match="it cannot be finished"):
            one.finish()


@pytest.mark.archs("cpu")
def test_other_numbers_of_exchanges_are_an_error(session, monkeypatch):
    class Ahead(Mirror):
        def all_reduce(self, array, op):
            if op == "max" and len(array) == 5:
                array[3] += 1

        def all_gather(self, value):
            return [value, value + 1 if isinstance(value, int) else value]

    monkeypatch.setattr(world, "_transport", Ahead(False))
    with pytest.raises(sg.SpirogradRuntimeError, match="processes have begun different numbers of halo exchanges, by rank 0, 1"):
        distributed.Partition(8)


@pytest.mark.archs("cpu", "cuda")
@pytest.mark.needs("torch")
@pytest.mark.parametrize("components", [1, 2])
def test_messages(session, arch, monkeypatch, components):
    mirror = Mirror(arch == "cuda")
    if mirror.takes_gpu:
        import torch

        torch.cuda.set_device(session.device.ordinal)
        torch.zeros(1, device="cuda")
    monkeypatch.setattr(world, "_transport", mirror)
    part = distributed.Partition((8, 5), (2, 1), halo=1, periodic=True)
    kind = sg.types.vector(2, sg.f32) if components == 2 else sg.f32
    x, loss = part.field(kind, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def weigh():
        for i, j in x:
            for k in sg.static(range(components)):
                value = x[i, j][k] if sg.static(components == 2) else x[i, j]
                loss[None] += value * value * (1.0 + i)

    cells = halo_cells(part.owned, part.halo, True, 0, neighbours((0, 0), (2, 1), (True, True)))
    whole = [tuple((table - np.array(part.origin)).T) for table in (cells.owned, cells.halo)]
    for step in range(3):
        start = np.random.default_rng(step).normal(size=x.to_numpy().shape).astype(np.float32)
        x.from_numpy(start)
        with sg.ad.Tape(loss, **({"checkpoints": 2} if step == 2 else {})):
            part.exchange(x)
            weigh()
            distributed.total(loss)
        moved = start.copy()
        moved[whole[1]] = start[whole[0]]
        weights = (1.0 + np.arange(part.local_shape[0]) + part.origin[0]).reshape(-1, 1, *[1] * (components - 1))
        assert np.array_equal(x.to_numpy(), moved) and np.isclose(loss[None], 2 * (moved**2 * weights).sum(), rtol=1e-4)
        gradient = 2 * moved * weights
        wanted = gradient.copy()
        wanted[whole[1]] = 0
        np.add.at(wanted, whole[0], gradient[whole[1]])
        assert np.allclose(x.grad.to_numpy(), wanted, rtol=1e-5)
    assert mirror.posted == 6
