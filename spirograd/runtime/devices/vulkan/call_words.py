"""The memory that Python and the functions of `call_code` share: its layout, in bytes."""

from __future__ import annotations

# A command buffer is submitted after this number of commands, so that the device starts while the host continues to record.
BATCH = 64

# The words of a stream, by byte offset.
(
    COMMANDS,  # The open command buffer, or 0.
    READY,  # A command buffer that was begun, and becomes the open one; or 0.
    RECORDED,  # The number of commands in the open one.
    BOUND,  # The pipeline that is bound in it.
    LOGGED,  # How many bytes of the log are launches that the open one lacks: they are recorded when it is submitted, or before other work.
    CURRENT,  # The address of the slot of the open one.
    FOLLOWING,  # The address of the slot after it, if that is free; else 0.
    VALUE,  # The value of the timeline to wait for; that of the next submission, if a command buffer is open.
    COMPLETED,  # The value up to which all work is known to be complete.
    POLL,  # How long to poll for it, in nanoseconds.
    BEGIN_INFO, BARRIER, HOST_BARRIER, COUNTER,  # Addresses of structures; of the last value read from the timeline.
    STAGES, HOST_STAGE, BIND_POINT, SHADER_STAGE,  # Constants of the API.
    DEVICE, QUEUE, SEMAPHORE, LAYOUT,  # Handles.
    FLIGHT,  # The address of the words of a `Flight`, or 0.
    RESULT,  # The VkResult of the call that failed.
    BEGIN, END, SUBMIT, READ_COUNTER, ORDER, PUSH, BIND, DISPATCH,  # Functions.
    STREAM_BYTES,
) = range(0, 8 * 33, 8)  # fmt: skip
# The log: a launch is the address of its words, then its argument block. Longer logs are recorded.
LOG_BYTES = 2048
LOG = STREAM_BYTES
# The slots follow. ``VALUE_OF_SLOT``: the timeline value of the last submission; ``SLOT_LOGGED``: the size of the log from which the
# command buffer was recorded, which may be submitted again for an equal log; 0 if it contains other work.
SLOTS = 8
HANDLE, SUBMISSION, VALUE_OF_SLOT, SLOT_LOGGED, SLOT_LOG = range(0, 40, 8)
FIRST_SLOT, SLOT_BYTES = LOG + LOG_BYTES, SLOT_LOG + LOG_BYTES
STATE_BYTES = FIRST_SLOT + SLOTS * SLOT_BYTES
# The words of a prepared launch. ``FAILED``: 1 after a launch that Python has to do.
STREAM, FAILED, TEXT, NBYTES, BLOCK, TASKS, FIRST_TASK = range(0, 56, 8)
PIPELINE, GROUPS, TASK_BYTES = range(0, 24, 8)
# What `finish` returns: 0, or the call that failed.
ENDING, SUBMITTING, READING = range(1, 4)
