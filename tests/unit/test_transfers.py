"""Tensors in memory of a GPU in launches, with a GPU's driver that is replaced by one for memory of the host."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd import transfers
from spirograd.lang import context
from spirograd.lang.data import device_arrays

if TYPE_CHECKING:
    import torch

F = 4  # bytes of an f32


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> transfers.Transfers:
    """Return the transfers of a launch on a device that uses tensors of torch in place, like CUDA."""
    needs.package("torch")
    sg.init(arch="cpu")
    session = context.session()
    monkeypatch.setattr(transfers, "device_array", lambda value: device_arrays._of_torch(value))
    device = SimpleNamespace(adopt=session.device.wrap)
    owner = SimpleNamespace(cfg=session.cfg, device=session.device, memory=session.memory, sharing=device, warned=set())
    return transfers.Transfers(owner)  # type: ignore[arg-type]


def aligned(count: int) -> torch.Tensor:
    """Return zeros that begin at a multiple of 16 bytes."""
    torch = needs.package("torch")
    memory = torch.zeros(count + 4)
    start = -memory.data_ptr() % 16 // F
    return memory[start : start + count]


def test_a_tensor_that_is_copied_and_overlaps_another_one_is_refused(launch: transfers.Transfers) -> None:
    memory = aligned(16)
    launch.bind(memory[:8], (), 0, "argument `a`")
    launch.bind(memory[1:9], (), 1, "argument `b`")
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="argument `a` and argument `b` overlap in memory"):
        launch.finish({0})


@pytest.mark.parametrize("part", [np.s_[1:8], np.s_[0:8:2]], ids=["unaligned", "strided"])
def test_a_tensor_that_is_copied_once_is_one_array(launch: transfers.Transfers, part: slice) -> None:
    memory = aligned(16)
    first, second = [launch.bind(memory[part], (), k, f"argument {k}") for k in range(2)]
    assert first.address == second.address != memory[part].data_ptr()
    launch.finish({0, 1})


def test_copies_apart_are_written_back(launch: transfers.Transfers) -> None:
    memory = aligned(16)
    bound = [launch.bind(part, (), k, f"argument {k}") for k, part in enumerate((memory[1:5], memory[5:9], memory[8:]))]
    assert bound[2].address == memory[8:].data_ptr()  # in place, and its first element is the last one of the copy before
    for copy in launch._clones.values():
        copy += 1
    launch.finish({0})
    np.testing.assert_array_equal(memory.numpy(), [0] + [1] * 4 + [0] * 11)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="argument 1 and argument 2 overlap in memory"):
        launch.finish({1})


def test_arrays_are_described_without_reading_them() -> None:
    class Array:
        __cuda_array_interface__ = {"version": 3, "data": (256, False), "shape": (3, 2), "typestr": "<f4", "strides": None}

    array = device_arrays.unread(Array())
    assert (array.ctypes.data, array.shape, array.strides, array.itemsize) == (256, (3, 2), (8, 4), F)


def test_a_copy_of_an_array_that_is_read_only_is_compared_too(launch: transfers.Transfers, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = aligned(8)
    described = device_arrays._of_torch(memory)
    launch.bind(memory, (), 0, "argument `a`")
    monkeypatch.setattr(transfers, "device_array", lambda value: dataclasses.replace(described, writable=False))
    launch.bind(memory, (), 1, "argument `b`")
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="argument `a` and argument `b` overlap in memory"):
        launch.finish({0})
