"""Functions that read the clock before and after the pool's, as `word_functions`: see `cpu_timer`.

A timed launch passes the address of a *context* in place of the pool: the pool, the number of parallel tasks so far, the memory where
chunks are recorded, or 0, and an entry for each task: begin, end, processor time of all threads, then processor time of the caller at the
begin and at the end. The task that the pool runs has a block of its own: the addresses of the task and of its uncontended variant, the
task's block, the processor time so far, the memory where chunks are recorded, and the number of the task.
"""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Addresses, Functions, add_atomically, call, i64, stack
from spirograd.runtime.devices.posix_clock import now, processor_time, thread

# Of a context: bytes before its entries and of an entry.
_POOL, _TASKS, _RECORDS, HEADER = range(0, 32, 8)
_BEGIN, _END, _USED, _CALLER_BEGIN, _CALLER_END, ENTRY = range(0, 48, 8)
# Of the block of a timed task.
_TASK, _UNCONTENDED, _BLOCK, _SUM, _CHUNKS, _NUMBER, _WRAPPED = range(0, 56, 8)
# Where chunks are recorded: before the entries, the capacity and the count; in an entry, task, thread, range and times.
_CAPACITY, _COUNT, CHUNKS_HEADER = range(0, 24, 8)
_OF_TASK, _OF_THREAD, _LOW, _HIGH, _FROM, _TO, CHUNK = range(0, 56, 8)

pool = Functions(
    sg_pool_run="void (i64, i64, i64, i64, i64, i64, i64, i64)",
    sg_pool_update="void (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64)",
)
timed = Addresses("sg_timed_chunk", "sg_timed_uncontended_chunk")


def timed_run(context: int, task: int, block: int, begin: int, end: int, cost: int, slots: int, lanes: int) -> None:
    """Run a task as the pool does, and fill in an entry of the context."""
    wrapped = stack(_WRAPPED)
    entry = _begin(context, wrapped, task, 0, block)
    pool.sg_pool_run(i64[context + _POOL], timed.sg_timed_chunk, wrapped, begin, end, cost, slots, lanes)
    _end(entry, wrapped)


def timed_update(
    context: int, task: int, uncontended: int, block: int, begin: int, end: int, cost: int, uncontended_cost: int, slots: int, lanes: int
) -> None:
    """Run a task that updates memory, of which there may be an uncontended variant, as the pool does, and fill in an entry."""
    wrapped = stack(_WRAPPED)
    variant = 0
    if uncontended != 0:
        variant = timed.sg_timed_uncontended_chunk
    entry = _begin(context, wrapped, task, uncontended, block)
    running = i64[context + _POOL]
    pool.sg_pool_update(running, timed.sg_timed_chunk, variant, wrapped, begin, end, cost, uncontended_cost, slots, lanes)
    _end(entry, wrapped)


def timed_chunk(wrapped: int, low: int, high: int, slot: int, lanes: int) -> None:
    """Run iterations of a task."""
    _run(wrapped, i64[wrapped + _TASK], low, high, slot, lanes)


def timed_uncontended_chunk(wrapped: int, low: int, high: int, slot: int, lanes: int) -> None:
    """Run iterations of the uncontended variant of a task."""
    _run(wrapped, i64[wrapped + _UNCONTENDED], low, high, slot, lanes)


def _begin(context: int, wrapped: int, task: int, uncontended: int, block: int) -> int:
    """Fill in the block of the timed task, and return the address of its entry."""
    number = i64[context + _TASKS]
    i64[context + _TASKS] = number + 1
    i64[wrapped + _TASK] = task
    i64[wrapped + _UNCONTENDED] = uncontended
    i64[wrapped + _BLOCK] = block
    i64[wrapped + _SUM] = 0
    i64[wrapped + _CHUNKS] = i64[context + _RECORDS]
    i64[wrapped + _NUMBER] = number
    entry = context + HEADER + ENTRY * number
    i64[entry + _CALLER_BEGIN] = processor_time()
    i64[entry + _BEGIN] = now()
    return entry


def _end(entry: int, wrapped: int) -> None:
    i64[entry + _END] = now()
    i64[entry + _CALLER_END] = processor_time()
    i64[entry + _USED] = add_atomically(wrapped + _SUM, 0)


def _run(wrapped: int, task: int, low: int, high: int, slot: int, lanes: int) -> None:
    """Run iterations, add the processor time, and record the range and its times, if there is capacity."""
    before = processor_time()
    begin = now()
    call(task, i64[wrapped + _BLOCK], low, high, slot, lanes)
    end = now()
    add_atomically(wrapped + _SUM, processor_time() - before)
    records = i64[wrapped + _CHUNKS]
    if records == 0:
        return
    place = add_atomically(records + _COUNT, 1)
    if place < i64[records + _CAPACITY]:
        entry = records + CHUNKS_HEADER + CHUNK * place
        i64[entry + _OF_TASK] = i64[wrapped + _NUMBER]
        i64[entry + _OF_THREAD] = thread()
        i64[entry + _LOW] = low
        i64[entry + _HIGH] = high
        i64[entry + _FROM] = begin
        i64[entry + _TO] = end
