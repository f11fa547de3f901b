"""Arrays of other libraries in launches: used in place where the device can, else copied there and back."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar

import numpy as np

from spirograd.base.arguments import ArrayBinding
from spirograd.base.arrays import Array
from spirograd.base.device import Buffer, Device, SharesMemory, UsesMetalBuffers
from spirograd.base.errors import SpirogradRuntimeTypeError, render
from spirograd.config import Config
from spirograd.lang.data.device_arrays import DeviceArray, device_array, have_common_device_memory, is_torch
from spirograd.lang.data.foreign_buffers import DeviceBuffer
from spirograd.lang.data.overlapping import have_common_memory, overlaps_itself
from spirograd.runtime import graph_recording
from spirograd.runtime.allocations import Allocation, Memory

if TYPE_CHECKING:
    from spirograd.base import protocols
    from spirograd.lang.data.device_arrays import Tensor

    class HasGradient(Protocol):
        """An array of another library with a gradient."""

        grad: object


logger = logging.getLogger("spirograd")
A = TypeVar("A")

# Kernels may read and write this number of bytes at once, from the first one of an array on.
_FOREIGN_ALIGNMENT = 16


class Owner(Protocol):
    """What a launch with arrays of other libraries needs of its session."""

    cfg: Config
    device: Device
    memory: Memory
    sharing: SharesMemory | None
    warned: set[Hashable]

    def raise_reported(self) -> None:
        """Raise what kernels have reported."""


def _requires_grad(value: object) -> TypeGuard[HasGradient]:
    return bool(getattr(value, "requires_grad", False))


class Transfers:
    """Arrays of NumPy and torch in one launch: used in place where the device can, else copied there and back.

    ``gradients``: of a derivative, which reads them and adds to the gradients of torch tensors.
    """

    def __init__(self, session: Owner, gradients: bool = False) -> None:
        self.session = session
        self.gradients = gradients
        self.pending: list[tuple[int, Callable[[], None]]] = []
        self._copies: dict[tuple[int, object, object, object], Allocation] = {}
        self._clones: dict[tuple[object, ...], Tensor] = {}  # of tensors in memory of the GPU that kernels cannot use in place
        # Arrays that the kernel may write to, those of the host and of the device: argument, what errors call it, array, copy.
        self._host: list[tuple[int, str, Array, Allocation | None]] = []
        self._device: list[tuple[int, str, object, object]] = []
        self._streams: set[int] = set()  # of other libraries whose memory the launch uses
        self._uses_metal = False  # whether the launch uses memory of torch on Metal, which has no stream that can be named
        self.tensors: dict[int, tuple[str, protocols.Tensor]] = {}  # those of torch by argument, with what errors call them
        self.torch_records = False  # whether torch records operations on one of them

    def bind(self, value: object, element_shape: tuple[int, ...], index: int, label: str) -> ArrayBinding:
        """The binding of an array that is flat argument ``index``; errors call it ``label``."""
        binding, write_back = self._bind(value, element_shape, label, None if self.gradients else index)
        target = value
        if _requires_grad(value):
            gradient = self._gradient(value, label)
            if self.gradients:
                target = gradient
                bound, write_back = self._bind(gradient, element_shape, label, index)
                binding.grad_address, binding.grad_allocation = bound.address, bound.allocation
        elif self.gradients:
            return binding
        if write_back is not None:
            self.pending.append((index, write_back))
        if is_torch(value) and not self.gradients:
            self.tensors[index] = label, value
            self.torch_records |= value.requires_grad and sys.modules["torch"].is_grad_enabled()
        if is_torch(target) and not target.is_inference():
            # So torch sees that a tensor which it saved has changed: its gradients would be wrong, with no error.
            self.pending.append((index, functools.partial(sys.modules["torch"].autograd.graph.increment_version, target)))
        return binding

    def _gradient(self, tensor: HasGradient, label: str) -> object:
        """Return the gradient of a tensor that requires one: zeros, if it has none yet. Also for launches of kernels that are
        differentiated later, but not where torch records nothing (`torch.no_grad()`). Arrays of other libraries bring theirs."""
        if not is_torch(tensor):
            return tensor.grad
        recording = sys.modules["torch"].is_grad_enabled()
        inner = not (tensor.is_leaf or tensor.retains_grad)  # torch's reverse pass leaves its gradient empty
        if inner and self.gradients and recording:  # else the caller hands the gradient on, as functions of torch's own do
            problem = f"{label}: this tensor is computed by torch from others, to which no gradient flows back"
            hint = "use `sg.ad.torch_function(kernel, ...)`, pass `t.detach()`, or call `t.retain_grad()` and hand `t.grad` on"
            if self.session.cfg.ad_broken_chain == "error":
                raise SpirogradRuntimeTypeError(render(problem, None, hint))
            if self.session.cfg.ad_broken_chain == "warn" and problem not in self.session.warned:
                self.session.warned.add(problem)
                logger.warning(render(problem, None, hint))
        with warnings.catch_warnings() if inner else contextlib.nullcontext():  # torch warns of reading such a gradient
            if inner:
                warnings.simplefilter("ignore", UserWarning)
            if tensor.grad is None and (self.gradients or recording):
                tensor.grad = tensor.detach().new_zeros(tensor.shape)
            return tensor.grad

    def _bind(
        self, value: object, element_shape: tuple[int, ...], label: str, index: int | None
    ) -> tuple[ArrayBinding, Callable[[], None] | None]:
        """How a launch sees an array, and what to run after a launch that writes to it. ``index``: of the argument by which it may write
        there, None if it only reads."""
        graph_recording.refuse(f"{label} is an array of another library: give the kernel an ndarray or a field")
        found = device_array(value)
        if found is not None:
            bound = self._bind_in_place(value, found, element_shape, label, index)
            if bound is not None:
                return bound
        array, write_back = _host_array(value)
        shape = array.shape[: array.ndim - len(element_shape)]
        direct = self._direct(array)
        if direct is None and (own := self._own(array)) is not None:
            memory, offset = own
            return ArrayBinding(memory.address + offset, shape, 0, 0, memory), write_back
        copy = self._copy(array) if direct is None else None
        if index is not None:
            self._host.append((index, label, array, copy))
        if direct is not None:
            return ArrayBinding(direct.address, shape), write_back
        assert copy is not None
        return ArrayBinding(copy.address, shape, 0, 0, copy), self._copy_back(copy, array, write_back, label)

    def _bind_in_place(
        self, value: object, found: DeviceArray, element_shape: tuple[int, ...], label: str, index: int | None
    ) -> tuple[ArrayBinding, Callable[[], None] | None] | None:
        """As `_bind`, for an array in memory of a GPU; None if it is not the one of the session. The launch comes after what its library
        was asked to do so far, and before what it is asked to do next; nothing waits, except for torch on Metal."""
        device, adopt = self.session.device, self._adopter(found)
        if adopt is None:
            return None
        whole, write_back = value, None
        used: object = None  # the copy that the launch works on
        aligned = found.address % _FOREIGN_ALIGNMENT == 0
        if not (found.contiguous and aligned):
            if not is_torch(value):
                reason = f"does not begin at a multiple of {_FOREIGN_ALIGNMENT} bytes" if found.contiguous else "is not contiguous"
                raise SpirogradRuntimeTypeError(render(f"{label}: the array {reason}", None, "pass a contiguous copy"))
            whole = used = self._clone(value)
            write_back = functools.partial(_copy_into, value.detach(), whole, label)
            found = device_array(whole) or found
        buffer = adopt(found)
        if buffer is None:
            return None
        allocation = Allocation(device, buffer, found.nbytes, whole)
        allocation.shared.add("")  # others write there, too
        if found.stream is not None:
            assert self.session.sharing is not None
            self.session.sharing.follow(found.stream)
            self._streams.add(found.stream)
        if found.metal_buffer:
            sys.modules["torch"].mps.synchronize()
            self._uses_metal = True
        if not found.writable:  # whether the kernel writes is known only after its launch
            copy = self.session.memory.allocate(max(found.nbytes, 1))
            copy.copy_from(allocation, found.nbytes)
            allocation = used = copy
            write_back = functools.partial(_refuse_write, label)
        if index is not None:
            self._device.append((index, label, value, used))
        shape = found.shape[: len(found.shape) - len(element_shape)]
        return ArrayBinding(allocation.address, shape, 0, 0, allocation), write_back

    def _adopter(self, found: DeviceArray) -> Callable[[DeviceArray], Buffer | None] | None:
        """Return how the device of the session adopts memory like that of ``found``; None if it cannot."""
        device, sharing = self.session.device, self.session.sharing
        if found.metal_buffer:
            if not isinstance(device, UsesMetalBuffers):
                return None
            return lambda array: device.adopt_metal(array.metal_buffer, array.address, array.nbytes)
        if sharing is None:
            return None
        return lambda array: sharing.adopt(array.address, array.nbytes)

    def _clone(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy of a tensor. One that is passed twice is one array in the kernel, too."""
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        clone = self._clones.get(same)
        if clone is None:
            clone = self._clones[same] = tensor.detach().clone(memory_format=sys.modules["torch"].contiguous_format)
        return clone

    def _copy(self, array: Array) -> Allocation:
        """The array in device memory. One that is passed twice is one array in the kernel, too."""
        interface = array.__array_interface__
        same = (interface["data"][0], array.shape, array.strides, array.dtype)
        allocation = self._copies.get(same)
        if allocation is None:
            allocation = self._copies[same] = self.session.memory.allocate(max(array.nbytes, 1))
            source = np.ascontiguousarray(array)
            if source.nbytes:
                allocation.write(0, _bytes(source))
        return allocation

    def host_address(self, binding: protocols.Place) -> int:
        """Where on the host an array lies that the launch works on in a copy; 0 for other arrays."""
        return next((same[0] for same, copy in self._copies.items() if copy is binding.allocation), 0)

    def _own(self, array: Array) -> tuple[Allocation, int] | None:
        """Where in memory of the device the array lies, as one that `to_numpy(copy=False)` or DLPack gave, if kernels can use it there."""
        found = None
        if array.flags.c_contiguous and array.flags.writeable and array.size:
            found = self.session.memory.handed_out(array.__array_interface__["data"][0], array.nbytes)
        return found if found is not None and (found[0].address + found[1]) % _FOREIGN_ALIGNMENT == 0 else None

    def _direct(self, array: Array) -> Buffer | None:
        """The memory of the array as a buffer, where the device can use it in place. It does so only during the launch."""
        flags = array.flags
        if flags.c_contiguous and flags.writeable and flags.aligned and array.size:
            return self.session.device.wrap(array.__array_interface__["data"][0], array.nbytes)
        return None

    def _copy_back(self, allocation: Allocation, array: Array, write_back: Callable[[], None] | None, label: str) -> Callable[[], None]:
        session = self.session  # with `self`, this object would be in a cycle, and the copy stay until Python collects it

        def run() -> None:
            result = np.empty(array.shape, array.dtype)
            if result.nbytes:
                session.raise_reported()
                allocation.read_into(0, _bytes(result))
            if not array.flags.writeable:
                problem = f"{label}: the kernel writes to this array, which is read-only"
                raise SpirogradRuntimeTypeError(render(problem, None, "pass a copy: `np.array(...)`"))
            if not array.flags.c_contiguous:
                _refuse_overlap(array.shape, array.strides, array.itemsize, label)
            array[...] = result
            if write_back is not None:
                write_back()

        return run

    def finish(self, written: set[int]) -> None:
        """After the launch: other libraries go on after it, and what the kernel wrote is copied back. Raises SpirogradRuntimeTypeError for
        arrays that cannot be written, or that overlap and are copies in the launch."""
        if self.session.sharing is not None:
            for stream in self._streams:
                self.session.sharing.precede(stream)
        if self._uses_metal:
            self.session.device.synchronize()
        if self._copies and len(self._host) > 1:
            _refuse_copies(self._host, written, have_common_memory)
        if len(self._device) > 1 and any(copy is not None for *_, copy in self._device):
            _refuse_copies(self._device, written, have_common_device_memory)
        for index, run in self.pending:
            if index in written:
                run()


def _refuse_copies(arrays: Sequence[tuple[int, str, A, object]], written: set[int], overlap: Callable[[A, A], bool]) -> None:
    """Raise if the kernel wrote to an array that has memory in common with another one, and one of them was a copy in the launch."""
    for (k, name, a, copy), (other, other_name, b, other_copy) in itertools.combinations(arrays, 2):
        if copy is other_copy or not written & {k, other} or not overlap(a, b):
            continue
        problem = f"{name} and {other_name.rpartition(': ')[2]} overlap in memory, and the kernel, which writes to one, works on copies"
        raise SpirogradRuntimeTypeError(render(problem, None, "pass memory of its own for each, or two views of an `sg.ndarray`"))


def _copy_into(tensor: Tensor, source: Tensor, label: str) -> None:
    """Copy to a torch tensor, which finds only some of those that overlap themselves."""
    _refuse_overlap(tuple(tensor.shape), tuple(tensor.stride()), 1, label)
    tensor.copy_(source)


def _refuse_overlap(shape: tuple[int, ...], strides: tuple[int, ...], size: int, label: str) -> None:
    """Raise if elements of an array to which a kernel writes have memory in common."""
    if overlaps_itself(shape, strides, size):
        problem = f"{label}: the kernel writes to this array, several elements of which are one place in memory"
        raise SpirogradRuntimeTypeError(render(problem, None, "pass a copy: `a.copy()` of NumPy, `t.clone()` of torch"))


def _refuse_write(label: str) -> None:
    problem = f"{label}: the kernel writes to this array, which is read-only"
    raise SpirogradRuntimeTypeError(render(problem, None, "pass a copy"))


def _bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, whatever its shape."""
    return array.reshape(-1).view(np.uint8).data


def _host_array(value: object) -> tuple[Array, Callable[[], None] | None]:
    """A NumPy array over the memory of ``value`` if the host can address it, else a copy and what writes it back."""
    if isinstance(value, np.ndarray):
        return value, None
    if not is_torch(value):
        library = "JAX" if isinstance(value, DeviceBuffer) else type(value).__module__.partition(".")[0]
        problem = f"an array of {library} lies in memory that this back end does not use in place"
        hint = "use `sg.cuda` or `sg.amdgpu` on its device, or pass a NumPy array"
        if library.lower().startswith("jax"):
            hint = 'use `sg.cuda` or `sg.amdgpu` on its device, or have JAX compute on the CPU: `jax.default_device(jax.devices("cpu")[0])`'
        raise SpirogradRuntimeTypeError(render(problem, None, hint))
    tensor = value.detach()
    if tensor.device.type == "cpu":
        return tensor.numpy(), None
    host = tensor.cpu()

    def write_back() -> None:
        tensor.copy_(host)

    return host.numpy(), write_back
