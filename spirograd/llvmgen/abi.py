"""Names and numbers shared by generated code, the worker pool and the CPU device. This module does not depend on the IR."""

from __future__ import annotations

# `void sg_kernel(ptr block, ptr pool)`: runs all tasks of a kernel in order. One per module.
DRIVER = "sg_kernel"
# `void sg_pool_run(ptr pool, ptr task, ptr block, i64 begin, i64 end, i64 cost, i64 slots, i64 lanes)`: calls `task(block, lo, hi, slot,
# lanes)` over [begin, end) and waits. ``cost`` is the work of one iteration in units of roughly one scalar instruction. ``slots``: the
# number of iterations that may run at the same time, at most ``lanes`` of them as lanes of one thread. A task gets fewer lanes (i32) if its
# chunks have fewer iterations, or there are fewer thread slots. ``slot`` (i32), from 0, distinguishes the threads that take part: their
# number times the lanes is at most the number of thread slots.
POOL_RUN = "sg_pool_run"
# `void sg_pool_update(ptr pool, ptr task, ptr uncontended, ptr block, i64 begin, i64 end, i64 cost, i64 uncontended_cost, i64 slots, i64
# lanes)`: the same for tasks with atomics. ``uncontended`` (or null) is the variant of ``task`` without atomics. One thread runs it, while
# no other launch is in this function.
POOL_UPDATE = "sg_pool_update"
# `i64 sg_stack_limit()`: the lowest address in the stack of the calling thread at which a recursive function may begin.
STACK_LIMIT = "sg_stack_limit"
# `[2 x i64]`: the end and the begin of the stack of the main thread, if they are known, because the query is slow on Linux.
MAIN_STACK = "sg_main_stack"
# Bytes beyond that limit for a recursive function and its callees that are not recursive, and the same on GPUs.
STACK_RESERVE = 128 << 10
GPU_STACK_RESERVE = 2 << 10
# The alignment of each allocation on the CPU, in bytes.
ALIGNMENT = 256
# Readable bytes that follow each allocation on the CPU, whatever its size.
GUARD_BYTES = 1 << 12
# `void sg_worker_main(ptr pool)`: the body of a worker thread; returns after `sg_pool_stop`.
WORKER_MAIN = "sg_worker_main"
# `void sg_pool_stop(ptr pool)`: stops the workers.
POOL_STOP = "sg_pool_stop"
# The default number of thread slots of a task: more than there are threads, and the most that a ticket can count.
ANY_SLOTS = 1 << 15

# Less work than this (units of cost) runs on the caller alone: waking a worker costs 1 to 10 microseconds.
INLINE_WORK = 30_000
# The least work of a chunk, so that claiming it costs little in comparison.
CHUNK_WORK = 8_000
# Chunks per thread: more of them balance better, fewer cost less.
CHUNKS_PER_THREAD = 8

# The state of a pool: byte offsets. Words written by different threads lie on different cache lines.
POOL_TICKET = 0  # i64: epoch << 32 | thread slots not yet taken << 16 | chunks not yet taken
POOL_DONE = 64  # i32: chunks finished; the caller sleeps on it
POOL_EPOCH = 128  # i32: number of the job; the workers sleep on it
POOL_SLEEPERS = 192  # i32: workers that sleep or are about to
POOL_STOPPING = 256  # i32
POOL_CALLER_SLEEPS = 260  # i32
POOL_BUSY = 320  # i32: a caller owns the pool
POOL_WORKERS = 324  # i32: worker threads started
POOL_SPINS = 328  # i32: pauses before a worker sleeps
POOL_UPDATERS = 336  # i32: launches that update memory by atomics; -1: one that does so without
POOL_WAITING = 340  # i32: launches that wait for the one without
POOL_JOB = 384  # ptr task, ptr block, i64 begin, i64 end, i64 chunk, i32 chunks, i32 slots, i32 lanes
POOL_MUTEX = 512  # pthread_mutex_t, where there is no futex
POOL_CONDITION = 640  # pthread_cond_t
POOL_BYTES = 1024
