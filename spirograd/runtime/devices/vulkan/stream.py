"""The queue of work: one open command buffer at a time, submitted in batches, finished in the order of a timeline semaphore."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter_ns
from types import SimpleNamespace

import vulkan as vk

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.driver_faults import Flight
from spirograd.runtime.devices.vulkan import call_words as layout
from spirograd.runtime.devices.vulkan.allocator import Allocator, Block
from spirograd.runtime.devices.vulkan.api import NULL, check, check_submission, ffi, number, struct
from spirograd.runtime.devices.vulkan.call_words import BATCH, SLOTS

# The most pending submissions: a host that is faster than the device waits.
UNDER_WAY = 16
ARGUMENT_BYTES = 64 << 10  # For argument blocks, per command buffer.
STAGING_BYTES = 4 << 20  # For copies, per command buffer.
_ARGUMENT_ALIGNMENT = 16
_STAGING_ALIGNMENT = 16
_WAIT_NANOSECONDS = 200_000_000  # One wait; between two waits Ctrl-C is raised.
# A blocking wait takes tens of microseconds to wake the host, so the host polls first, for about as long as it could lose.
POLL_NANOSECONDS = 100_000

# What compiled code reports, see `_advance`: the word of a call that failed, and what it was for.
_ADVANCES = {
    layout.ENDING: (check_submission, "end a command buffer"),
    layout.SUBMITTING: (check_submission, "submit work"),
    layout.READING: (check, "read the timeline"),
}
_COMMANDS, _READY, RECORDED, _BOUND, _LOGGED, _CURRENT, _FOLLOWING, _VALUE, _COMPLETED, _POLL, _RESULT = (
    at // 8
    for at in (
        layout.COMMANDS, layout.READY, layout.RECORDED, layout.BOUND, layout.LOGGED, layout.CURRENT, layout.FOLLOWING, layout.VALUE,
        layout.COMPLETED, layout.POLL, layout.RESULT,
    )
)  # fmt: skip
_HANDLE, _SUBMISSION, _VALUE_OF_SLOT, _SLOT_LOGGED = (
    at // 8 for at in (layout.HANDLE, layout.SUBMISSION, layout.VALUE_OF_SLOT, layout.SLOT_LOGGED)
)

_COMPUTE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
_TRANSFER = vk.VK_PIPELINE_STAGE_TRANSFER_BIT
_HOST = vk.VK_PIPELINE_STAGE_HOST_BIT
WORK_STAGES = _COMPUTE | _TRANSFER
_WRITES = vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
_READS = vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_TRANSFER_READ_BIT


@dataclass(slots=True, eq=False)
class Slot:
    """A command buffer with the objects that its commands need until they are complete. ``words``: those that compiled code shares, of the
    stream; ``at``: the number of the first one of this slot."""

    commands: ffi.CData
    submit: ffi.CData
    kept: list[ffi.CData]
    words: ctypes.Array[ctypes.c_uint64]
    at: int
    arguments: int = 0  # Bytes used of its part of the argument block.
    staging: Block | None = None
    staged: int = 0  # Bytes used of ``staging``.

    @property
    def value(self) -> int:
        """The timeline value of the last submission."""
        return self.words[self.at + _VALUE_OF_SLOT]

    @value.setter
    def value(self, value: int) -> None:
        self.words[self.at + _VALUE_OF_SLOT] = value

    @property
    def address(self) -> int:
        """The address of the words of this slot."""
        return ctypes.addressof(self.words) + 8 * self.at

    def forget(self) -> None:
        """Do not submit the command buffer again before it is recorded anew."""
        self.words[self.at + _SLOT_LOGGED] = 0


class Stream:
    """A recorder and submitter of commands. Not thread safe: the device's lock guards it.

    ``queue``: the number of a queue of the family, which several streams may share. ``submitted`` and ``completed`` are timeline values:
    all work up to ``completed`` is known to be complete. ``poll_nanoseconds``: how long `wait` polls before it blocks. ``flight``: the
    launches of drivers that run on the CPU. ``words``: the state that compiled code shares, see `call_words`. ``record_logged``,
    ``advance``: the functions of `call_code` that record the log and that submit and poll, once there is compiled code.
    """

    def __init__(
        self,
        device: ffi.CData,
        functions: SimpleNamespace,
        family: int,
        allocator: Allocator,
        poll_nanoseconds: int,
        flight: Flight | None = None,
        queue: int = 0,
    ) -> None:
        self.device = device
        self.fn = functions
        self.allocator = allocator
        self.layout: ffi.CData = None  # Of pipelines.
        self.words = (ctypes.c_uint64 * (layout.STATE_BYTES // 8))()
        self.record_logged: Callable[[], int] | None = None
        self.advance: Callable[[], int] | None = None
        self.submitted = 0
        self.completed = 0
        self.poll_nanoseconds = poll_nanoseconds
        self.flight = flight
        self._waits: dict[Stream, int] = {}  # Values of other timelines that the open command buffer comes after.
        self._create_objects(family, queue)
        self._create_structures()
        self.slots = [self._create_slot((layout.FIRST_SLOT + layout.SLOT_BYTES * k) // 8) for k in range(SLOTS)]
        self._arguments = allocator.create_block(SLOTS * ARGUMENT_BYTES, staging=True)
        self._current = 0

    def _create_objects(self, family: int, number: int) -> None:
        fn, device = self.fn, self.device
        queue = ffi.new("VkQueue*")
        fn.GetDeviceQueue(device, family, number, queue)
        self._queue = queue[0]
        pool = ffi.new("VkCommandPool*")
        info = struct("VkCommandPoolCreateInfo", flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, queueFamilyIndex=family)
        check(fn.CreateCommandPool(device, info, NULL, pool), "create a command pool")
        self._pool = pool[0]
        kind = struct("VkSemaphoreTypeCreateInfo", semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE)
        self._semaphore = ffi.new("VkSemaphore*")
        check(fn.CreateSemaphore(device, struct("VkSemaphoreCreateInfo", pNext=kind), NULL, self._semaphore), "create a semaphore")

    def _create_structures(self) -> None:
        """Allocate the structures that every launch or submission reads."""
        self._begin_info = struct("VkCommandBufferBeginInfo")
        self.barrier = struct("VkMemoryBarrier", srcAccessMask=_WRITES, dstAccessMask=_WRITES | _READS)
        self._host_barrier = struct("VkMemoryBarrier", srcAccessMask=_WRITES, dstAccessMask=vk.VK_ACCESS_HOST_READ_BIT)
        self._signal = ffi.new("uint64_t*")
        self._timeline = struct("VkTimelineSemaphoreSubmitInfo", signalSemaphoreValueCount=1, pSignalSemaphoreValues=self._signal)
        self._wanted = ffi.new("uint64_t*")
        self._wait_info = struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._semaphore, pValues=self._wanted)
        self._counter = ffi.new("uint64_t*")
        self._region = ffi.new("VkBufferCopy*")

    def connect(self, record_logged: Callable[[int], Callable[[], int]], finish: Callable[[int], Callable[[], int]]) -> bool:
        """Have compiled code record and wait. The arguments make the attributes from the address of the words. Returns False if functions
        of the driver have been replaced by functions of Python."""
        if self.advance is not None:
            return True
        words = {
            layout.BEGIN_INFO: self._begin_info, layout.BARRIER: self.barrier, layout.HOST_BARRIER: self._host_barrier,
            layout.COUNTER: self._counter, layout.DEVICE: self.device, layout.QUEUE: self._queue, layout.SEMAPHORE: self._semaphore[0],
            layout.LAYOUT: self.layout,
            layout.BEGIN: self.fn.BeginCommandBuffer, layout.END: self.fn.EndCommandBuffer, layout.SUBMIT: self.fn.QueueSubmit,
            layout.READ_COUNTER: self.fn.GetSemaphoreCounterValue, layout.ORDER: self.fn.CmdPipelineBarrier,
            layout.PUSH: self.fn.CmdPushConstants, layout.BIND: self.fn.CmdBindPipeline, layout.DISPATCH: self.fn.CmdDispatch,
        }  # fmt: skip
        if not all(isinstance(value, ffi.CData) for value in words.values()):
            return False
        for at, value in words.items():
            self.words[at // 8] = number(value)
        self.words[layout.STAGES // 8], self.words[layout.HOST_STAGE // 8] = WORK_STAGES, _HOST
        self.words[layout.BIND_POINT // 8] = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        self.words[layout.SHADER_STAGE // 8] = vk.VK_SHADER_STAGE_COMPUTE_BIT
        self.words[layout.FLIGHT // 8] = 0 if self.flight is None else self.flight.address
        address = ctypes.addressof(self.words)
        self.record_logged, self.advance = record_logged(address), finish(address)
        return True

    def _create_slot(self, at: int) -> Slot:
        commands = ffi.new("VkCommandBuffer*")
        info = struct("VkCommandBufferAllocateInfo", commandPool=self._pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1)
        check(self.fn.AllocateCommandBuffers(self.device, info, commands), "allocate a command buffer")
        submit = self._submission(commands)
        self.words[at + _HANDLE], self.words[at + _SUBMISSION] = number(commands[0]), number(submit)
        return Slot(commands[0], submit, [commands], self.words, at)

    def _submission(self, commands: object) -> ffi.CData:
        """Return the structure that submits the command buffer that ``commands`` points to, and signals the timeline."""
        return struct(
            "VkSubmitInfo",
            pNext=self._timeline,
            commandBufferCount=1,
            pCommandBuffers=commands,
            signalSemaphoreCount=1,
            pSignalSemaphores=self._semaphore,
        )

    @property
    def commands(self) -> ffi.CData | None:
        """The open command buffer or None."""
        return self.slots[self._current].commands if self.words[_COMMANDS] else None

    def open(self) -> ffi.CData:
        """Return the open command buffer, with all launches so far; if there is none, begin the next one of the ring once it is free."""
        words, slot = self.words, self.slots[self._current]
        if words[_LOGGED]:
            self._record_log()
        elif not words[_COMMANDS]:
            if not words[_READY]:
                if slot.value > self.completed:
                    self.wait(slot.value)
                slot.arguments = slot.staged = 0
                slot.forget()
                check(self.fn.BeginCommandBuffer(slot.commands, self._begin_info), "begin a command buffer")
            words[_COMMANDS], words[_READY], words[RECORDED], words[_BOUND] = words[slot.at + _HANDLE], 0, 0, 0
        return slot.commands

    def _record_log(self) -> None:
        assert self.record_logged is not None
        self.record_logged()

    def forget_recorded(self) -> None:
        """Do not submit a command buffer again before it is recorded anew: objects that it refers to are destroyed."""
        for slot in self.slots:
            slot.forget()

    def order(self) -> ffi.CData:
        """Return the open command buffer after a barrier: later commands see the effects of all earlier ones."""
        if self.words[RECORDED] >= BATCH:
            self.flush()
        commands = self.open()
        self.fn.CmdPipelineBarrier(commands, WORK_STAGES, WORK_STAGES, 0, 1, self.barrier, 0, NULL, 0, NULL)
        self.words[RECORDED] += 1
        return commands

    def let_host_see(self, commands: ffi.CData) -> None:
        """Record a barrier that makes writes visible to the host once the submission is complete."""
        self.fn.CmdPipelineBarrier(commands, WORK_STAGES, _HOST, 0, 1, self._host_barrier, 0, NULL, 0, NULL)

    def flush(self) -> None:
        """Submit the open command buffer, if any."""
        if not self.words[_COMMANDS]:
            return
        slot = self.slots[self._current]
        if self.words[_LOGGED]:
            self._record_log()
        self.let_host_see(slot.commands)
        self.words[_COMMANDS] = 0
        check_submission(self.fn.EndCommandBuffer(slot.commands), "end a command buffer")
        self._queue_up(slot.submit if not self._waits else self._submission_after(slot.kept[0]))
        slot.value = self.submitted
        self._current = (self._current + 1) % SLOTS

    def _advance(self, advance: Callable[[], int], value: int) -> None:
        """Do what `flush` does, and poll for ``value``, by compiled code, which also begins the next command buffer if that is free."""
        words, slot, current = self.words, self.slots[self._current], (self._current + 1) % SLOTS
        following = self.slots[current]
        is_open = words[_COMMANDS]
        if is_open:
            self._signal[0] = self.submitted + 1
            words[_CURRENT], words[_FOLLOWING] = slot.address, following.address if following.value <= self.completed else 0
        words[_VALUE], words[_COMPLETED], words[_POLL] = value, self.completed, self.poll_nanoseconds
        failed = advance()
        if is_open and failed not in (layout.ENDING, layout.SUBMITTING):
            self.submitted += 1
            if words[_READY] != words[slot.at + _HANDLE]:  # Else the open one has been left empty, and an equal one was submitted.
                self._current = current
                if words[_READY]:
                    following.arguments = following.staged = 0
        if failed:
            raise_error, what = _ADVANCES[failed]
            raise_error(ctypes.c_int32(words[_RESULT]).value, what)
        self.completed = self._counter[0]

    def submit(self, commands: object) -> None:
        """Submit the open command buffer, then ``commands``, a `VkCommandBuffer *` of a series that may be submitted while it still
        runs."""
        self.flush()
        if self.submitted - self.poll() >= UNDER_WAY:
            self.wait(self.submitted - UNDER_WAY + 1)
        self._queue_up(self._submission(commands))

    def _queue_up(self, submission: ffi.CData) -> None:
        self._signal[0] = self.submitted + 1
        check_submission(self.fn.QueueSubmit(self._queue, 1, submission, NULL), "submit work")
        self.submitted += 1

    def _submission_after(self, commands: object) -> ffi.CData:
        """Return a structure like `_submission`, after the values of `_waits`, which are cleared."""
        waits, self._waits = self._waits, {}
        count = len(waits)
        semaphores = ffi.new("VkSemaphore[]", [other._semaphore[0] for other in waits])
        values, stages = ffi.new("uint64_t[]", list(waits.values())), ffi.new("VkPipelineStageFlags[]", [WORK_STAGES] * count)
        timeline = struct(
            "VkTimelineSemaphoreSubmitInfo",
            waitSemaphoreValueCount=count,
            pWaitSemaphoreValues=values,
            signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=self._signal,
        )
        submission = self._submission(commands)
        submission.pNext, submission.waitSemaphoreCount = timeline, count
        submission.pWaitSemaphores, submission.pWaitDstStageMask = semaphores, stages
        self._kept = (semaphores, values, stages, timeline)  # Until the driver has read them.
        return submission

    def after(self, other: Stream, value: int) -> None:
        """Have later commands come after ``value`` of the timeline of another stream, which must have been submitted."""
        self.flush()
        self.open()
        self._waits[other] = max(value, self._waits.get(other, 0))

    def poll(self) -> int:
        """Return the newest completed timeline value."""
        if self.completed < self.submitted:
            check(self.fn.GetSemaphoreCounterValue(self.device, self._semaphore[0], self._counter), "read the timeline")
            self.completed = self._counter[0]
        return self.completed

    def wait(self, value: int) -> None:
        """Wait until timeline ``value``, which must have been submitted, is complete."""
        if self.completed >= value:
            return
        end = perf_counter_ns() + self.poll_nanoseconds
        while self.poll() < value and perf_counter_ns() < end:
            pass
        self._block(value)

    def _block(self, value: int) -> None:
        self._wanted[0] = value
        while self.completed < value:
            result = self.fn.WaitSemaphores(self.device, self._wait_info, _WAIT_NANOSECONDS)
            check(result, "wait for the device")
            if result == vk.VK_SUCCESS:
                self.completed = max(self.completed, value)
            else:
                interrupts.deliver(inside=True)

    def finish(self) -> None:
        """Submit and wait for all work."""
        if self._waits or self.advance is None:
            self.flush()
            self.wait(self.submitted)
        elif self.completed < self.pending_value:
            self._advance(self.advance, self.pending_value)
            if self.completed < self.submitted:
                self._block(self.submitted)
        if self.flight is not None:
            self.flight.clear()

    @property
    def pending_value(self) -> int:
        """The timeline value after which no command recorded so far can still run."""
        return self.submitted + (self.words[_COMMANDS] != 0)

    @property
    def idle(self) -> bool:
        """Whether no command is recorded or running."""
        return not self.words[_COMMANDS] and self.poll() == self.submitted

    def put_arguments(self, block: bytes) -> int:
        """Copy an argument block to memory that lives until the open command buffer is complete; return its device address."""
        size = -(-len(block) // _ARGUMENT_ALIGNMENT) * _ARGUMENT_ALIGNMENT
        if size > ARGUMENT_BYTES:
            raise SpirogradRuntimeError(f"a kernel's arguments take {len(block)} bytes; at most {ARGUMENT_BYTES} are possible")
        self.open()
        if self.slots[self._current].arguments + size > ARGUMENT_BYTES:
            self.flush()
            self.open()
        slot = self.slots[self._current]
        offset = self._current * ARGUMENT_BYTES + slot.arguments
        slot.arguments += size
        ctypes.memmove(self._arguments.host + offset, block, len(block))
        return self._arguments.address + offset

    def stage(self, nbytes: int) -> tuple[Slot, Block, int]:
        """Allocate ``nbytes`` (at most STAGING_BYTES) of staging that lives as long as the open command buffer; return slot, block
        and offset.

        The next command, which uses it, goes into that command buffer: `order` does not submit it before.
        """
        if self.words[RECORDED] >= BATCH:
            self.flush()
        self.open()
        if self.slots[self._current].staged + nbytes > STAGING_BYTES:
            self.flush()
            self.open()
        slot = self.slots[self._current]
        if slot.staging is None:
            slot.staging = self.allocator.create_block(STAGING_BYTES, staging=True)
        offset = slot.staged
        slot.staged = -(-(offset + nbytes) // _STAGING_ALIGNMENT) * _STAGING_ALIGNMENT
        return slot, slot.staging, offset

    def copy(self, source: ffi.CData, source_offset: int, target: ffi.CData, target_offset: int, nbytes: int) -> None:
        """Record a copy between two VkBuffers, after all earlier commands."""
        commands = self.order()
        region = self._region
        region.srcOffset, region.dstOffset, region.size = source_offset, target_offset, nbytes
        self.fn.CmdCopyBuffer(commands, source, target, 1, region)

    def close(self) -> None:
        """Destroy all objects; the queue must be idle."""
        for block in [self._arguments, *(slot.staging for slot in self.slots)]:
            if block is not None:
                self.allocator.destroy_block(block)
        self.fn.DestroySemaphore(self.device, self._semaphore[0], NULL)
        self.fn.DestroyCommandPool(self.device, self._pool, NULL)
