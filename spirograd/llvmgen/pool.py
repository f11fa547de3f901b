"""The worker pool as LLVM IR, for any architecture: one job at a time, split into chunks that the caller and the workers claim one by one.

A job is published by one 64-bit ticket, `epoch << 32 | slots left << 16 | chunks left`. A thread claims a chunk by compare-and-exchange on
it, and its first one with a thread slot, so a worker that wakes late finds another epoch, no thread slot or no chunk, and the caller never
waits for a worker that claimed none. Sleeping is `wait(address, value)`: return at once if the word at ``address`` differs from ``value``,
else sleep until woken (spurious wakes are allowed).
"""

from __future__ import annotations

from spirograd.llvmgen import abi

_FUTEX_NUMBERS = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()\n", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("", 'call void asm sideeffect "yield", ""()'),
}
_PAUSES["AMD64"] = _PAUSES["x86_64"]
_PAUSES["arm64"] = _PAUSES["aarch64"]
# Pauses of a caller that waits for the last chunks before it sleeps.
_CALLER_SPINS = 1000

_FUTEX = """declare i64 @syscall(i64, ...)
define internal void @wait(ptr %pool, ptr %word, i32 %value) nounwind {
  call i64 (i64, ...) @syscall(i64 NUMBER, ptr %word, i64 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}
define internal void @wake(ptr %pool, ptr %word, i32 %count) nounwind {
  call i64 (i64, ...) @syscall(i64 NUMBER, ptr %word, i64 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}
"""

# One mutex and condition serve both words: all threads that wait wake and check again.
_PTHREAD = f"""declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
define internal void @wait(ptr %pool, ptr %word, i32 %value) nounwind {{
  %mutex = getelementptr i8, ptr %pool, i64 {abi.POOL_MUTEX}
  %condition = getelementptr i8, ptr %pool, i64 {abi.POOL_CONDITION}
  call i32 @pthread_mutex_lock(ptr %mutex)
  br label %look
look:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %value
  br i1 %same, label %sleep, label %out
sleep:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %look
out:
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}}
define internal void @wake(ptr %pool, ptr %word, i32 %count) nounwind {{
  %mutex = getelementptr i8, ptr %pool, i64 {abi.POOL_MUTEX}
  %condition = getelementptr i8, ptr %pool, i64 {abi.POOL_CONDITION}
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}}
"""

_WINDOWS = """declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)
define internal void @wait(ptr %pool, ptr %word, i32 %value) nounwind {
  %expected = alloca i32
  store i32 %value, ptr %expected
  call i32 @WaitOnAddress(ptr %word, ptr %expected, i64 4, i32 -1)
  ret void
}
define internal void @wake(ptr %pool, ptr %word, i32 %count) nounwind {
  call void @WakeByAddressAll(ptr %word)
  ret void
}
"""

_JOB = ("ptr task", "ptr block", "i64 begin", "i64 end", "i64 chunk", "i32 chunks", "i32 slots", "i32 lanes")


_WORDS = {
    "done": abi.POOL_DONE,
    "epoch": abi.POOL_EPOCH,
    "sleepers": abi.POOL_SLEEPERS,
    "stopping": abi.POOL_STOPPING,
    "sleeps": abi.POOL_CALLER_SLEEPS,
    "busy": abi.POOL_BUSY,
    "workers": abi.POOL_WORKERS,
    "spins": abi.POOL_SPINS,
    "updaters": abi.POOL_UPDATERS,
    "waiting": abi.POOL_WAITING,
    **{entry.split()[1]: abi.POOL_JOB + 8 * k for k, entry in enumerate(_JOB)},
}
_JOB_NAMES = " ".join(entry.split()[1] for entry in _JOB)


def _fields(names: str) -> str:
    """Return pointers `%<name>.at` to words of the pool's state."""
    return "\n".join(f"  %{name}.at = getelementptr i8, ptr %pool, i64 {_WORDS[name]}" for name in names.split())


# The job is read only after a chunk has been claimed: until that chunk is done, no other job is published. A thread slot lasts as long as
# the job: the thread may get to the next one without leaving the loop.
def _drain() -> str:
    """Return `void drain(ptr pool)`, which claims and runs chunks while there are some, and a thread slot. The last thread to finish wakes
    the caller."""
    loads = "".join(f"  %{name} = load {t}, ptr %{name}.at\n" for t, name in (entry.split() for entry in _JOB))
    return f"""define internal void @drain(ptr %pool) nounwind {{
entry:
{_fields("done sleeps " + _JOB_NAMES)}
  br label %look
look:
  %slot = phi i32 [ 0, %entry ], [ %mine, %work ], [ %mine, %finish ], [ %mine, %ring ]
  %of = phi i64 [ -1, %entry ], [ %job, %work ], [ %job, %finish ], [ %job, %ring ]
  %first = load atomic i64, ptr %pool acquire, align 8
  br label %try
try:
  %ticket = phi i64 [ %first, %look ], [ %other, %take ]
  %low = trunc i64 %ticket to i32
  %left = and i32 %low, 65535
  %free = lshr i32 %low, 16
  %job = lshr i64 %ticket, 32
  %has = icmp eq i64 %job, %of
  %places = select i1 %has, i32 1, i32 %free
  %none = icmp eq i32 %left, 0
  %full = icmp eq i32 %places, 0
  %closed = or i1 %none, %full
  br i1 %closed, label %out, label %take
take:
  %taking = select i1 %has, i64 1, i64 65537
  %less = sub i64 %ticket, %taking
  %swap = cmpxchg ptr %pool, i64 %ticket, i64 %less acq_rel acquire
  %taken = extractvalue {{ i64, i1 }} %swap, 1
  %other = extractvalue {{ i64, i1 }} %swap, 0
  br i1 %taken, label %work, label %try
work:
{loads}  %new = sub i32 %slots, %free
  %mine = select i1 %has, i32 %slot, i32 %new
  %number = sub i32 %chunks, %left
  %wide = zext i32 %number to i64
  %offset = mul i64 %wide, %chunk
  %lo = add i64 %begin, %offset
  %limit = add i64 %lo, %chunk
  %hi = call i64 @llvm.smin.i64(i64 %limit, i64 %end)
  call void %task(ptr %block, i64 %lo, i64 %hi, i32 %mine, i32 %lanes)
  %before = atomicrmw add ptr %done.at, i32 1 seq_cst
  %now = add i32 %before, 1
  %last = icmp eq i32 %now, %chunks
  br i1 %last, label %finish, label %look
finish:
  %sleeps = load atomic i32, ptr %sleeps.at seq_cst, align 4
  %asleep = icmp ne i32 %sleeps, 0
  br i1 %asleep, label %ring, label %look
ring:
  call void @wake(ptr %pool, ptr %done.at, i32 1)
  br label %look
out:
  ret void
}}
"""


def _worker(pause: str) -> str:
    return f"""define void @{abi.WORKER_MAIN}(ptr %pool) nounwind {{
entry:
{_fields("epoch sleepers stopping spins")}
  %spins = load i32, ptr %spins.at
  br label %serve
serve:
  %seen = load atomic i32, ptr %epoch.at seq_cst, align 4
  call void @drain(ptr %pool)
  %stopping = load atomic i32, ptr %stopping.at seq_cst, align 4
  %stop = icmp ne i32 %stopping, 0
  br i1 %stop, label %out, label %spin
spin:
  %k = phi i32 [ 0, %serve ], [ %k1, %rest ]
  %epoch = load atomic i32, ptr %epoch.at acquire, align 4
  %new = icmp ne i32 %epoch, %seen
  br i1 %new, label %serve, label %count
count:
  %k1 = add i32 %k, 1
  %tired = icmp uge i32 %k1, %spins
  br i1 %tired, label %sleep, label %rest
rest:
  {pause}
  br label %spin
sleep:
  %up = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  call void @wait(ptr %pool, ptr %epoch.at, i32 %seen)
  %down = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  br label %serve
out:
  ret void
}}
define void @{abi.POOL_STOP}(ptr %pool) nounwind {{
{_fields("epoch stopping")}
  store atomic i32 1, ptr %stopping.at seq_cst, align 4
  %e = atomicrmw add ptr %epoch.at, i32 1 seq_cst
  call void @wake(ptr %pool, ptr %epoch.at, i32 2147483647)
  ret void
}}
"""


def _decide() -> str:
    """Return code that runs inline if there is little work, no worker is free, or another caller has the pool. Otherwise it acquires the
    pool and splits the range."""
    return f"""define void @{abi.POOL_RUN}(
    ptr %pool, ptr %task, ptr %block, i64 %begin, i64 %end, i64 %cost, i64 %most_slots, i64 %most_lanes) nounwind {{
entry:
{_fields("done epoch sleepers busy workers sleeps " + _JOB_NAMES)}
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %weigh, label %out
weigh:
  %n = sub i64 %end, %begin
  %fitting = call i64 @llvm.umin.i64(i64 %most_lanes, i64 %most_slots)
  %counted = call i64 @llvm.umin.i64(i64 %n, i64 4294967296)
  %work = mul i64 %counted, %cost
  %little = icmp ult i64 %work, {abi.INLINE_WORK}
  %workers = load i32, ptr %workers.at
  %alone = icmp eq i32 %workers, 0
  %single = icmp eq i64 %n, 1
  %pointless = or i1 %alone, %single
  %inline = or i1 %little, %pointless
  br i1 %inline, label %self, label %own
own:
  %claim = cmpxchg ptr %busy.at, i32 0, i32 1 acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %claim, 1
  br i1 %mine, label %cut, label %self
self:
  %all = call i64 @llvm.umin.i64(i64 %fitting, i64 %n)
  %alone_lanes = trunc i64 %all to i32
  call void %task(ptr %block, i64 %begin, i64 %end, i32 0, i32 %alone_lanes)
  ret void
cut:
  %threads = add i32 %workers, 1
  %fine = mul i32 %threads, {abi.CHUNKS_PER_THREAD}
  %most = zext i32 %fine to i64
  %worth = udiv i64 %work, {abi.CHUNK_WORK}
  %c0 = call i64 @llvm.umin.i64(i64 %most, i64 %worth)
  %c1 = call i64 @llvm.umin.i64(i64 %c0, i64 %n)
  %part = udiv i64 %n, %c1
  %rest = urem i64 %n, %c1
  %ragged = icmp ne i64 %rest, 0
  %one = zext i1 %ragged to i64
  %exact = add i64 %part, %one
  %up = add i64 %exact, 63
  %round = and i64 %up, -64
  %long = icmp uge i64 %exact, 256
  %chunk = select i1 %long, i64 %round, i64 %exact
  %n1 = sub i64 %n, 1
  %full_chunks = udiv i64 %n1, %chunk
  %count = add i64 %full_chunks, 1
  %chunks = trunc i64 %count to i32
  %used = call i64 @llvm.umin.i64(i64 %fitting, i64 %chunk)
  %lanes = trunc i64 %used to i32
  %offered = udiv i64 %most_slots, %used
  %everybody = zext i32 %threads to i64
  %r0 = call i64 @llvm.umin.i64(i64 %offered, i64 %everybody)
  %taking = call i64 @llvm.umin.i64(i64 %r0, i64 %count)
  %slots = trunc i64 %taking to i32
"""


def _publish() -> str:
    """Return code that writes the job, then its ticket, then wakes sleepers."""
    job = "".join(f"  store {t} %{name}, ptr %{name}.at\n" for t, name in (entry.split() for entry in _JOB))
    return f"""{job}  store atomic i32 0, ptr %done.at monotonic, align 4
  %old = load atomic i32, ptr %epoch.at monotonic, align 4
  %epoch = add i32 %old, 1
  %high0 = zext i32 %epoch to i64
  %high = shl i64 %high0, 32
  %middle = shl i64 %taking, 16
  %low = or i64 %middle, %count
  %ticket = or i64 %high, %low
  store atomic i64 %ticket, ptr %pool release, align 8
  %bump = atomicrmw add ptr %epoch.at, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %ring, label %help
ring:
  %others = sub i32 %slots, 1
  call void @wake(ptr %pool, ptr %epoch.at, i32 %others)
  br label %help
"""


def _help_and_wait(pause: str) -> str:
    """Return code that works too, then waits for the chunks that others claimed: it spins a while, then sleeps."""
    return f"""help:
  call void @drain(ptr %pool)
  br label %look
look:
  %k = phi i32 [ 0, %help ], [ %k1, %again ]
  %d = load atomic i32, ptr %done.at acquire, align 4
  %finished = icmp eq i32 %d, %chunks
  br i1 %finished, label %release, label %count_spin
count_spin:
  %k1 = add i32 %k, 1
  %tired = icmp uge i32 %k1, {_CALLER_SPINS}
  br i1 %tired, label %sleep, label %again
again:
  {pause}
  br label %look
sleep:
  store atomic i32 1, ptr %sleeps.at seq_cst, align 4
  br label %check
check:
  %ds = load atomic i32, ptr %done.at seq_cst, align 4
  %ready = icmp eq i32 %ds, %chunks
  br i1 %ready, label %awake, label %doze
doze:
  call void @wait(ptr %pool, ptr %done.at, i32 %ds)
  br label %check
awake:
  store atomic i32 0, ptr %sleeps.at seq_cst, align 4
  br label %release
release:
  store atomic i32 0, ptr %busy.at release, align 4
  br label %out
out:
  ret void
}}
"""


def _update_uncontended() -> str:
    """Return code that updates without atomics if one thread is then as fast as all of them with atomics, but not during other updates,
    which wait for it."""
    return f"""define void @{abi.POOL_UPDATE}(
    ptr %pool, ptr %task, ptr %uncontended, ptr %block,
    i64 %begin, i64 %end, i64 %cost, i64 %uncontended_cost, i64 %slots, i64 %lanes) nounwind {{
entry:
{_fields("workers updaters waiting")}
  %n = sub i64 %end, %begin
  %none = icmp eq ptr %uncontended, null
  br i1 %none, label %look, label %weigh
weigh:
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %compare, label %out
compare:
  %counted = call i64 @llvm.umin.i64(i64 %n, i64 4294967296)
  %work = mul i64 %counted, %uncontended_cost
  %little = icmp ult i64 %work, {abi.INLINE_WORK}
  %workers = load i32, ptr %workers.at
  %threads32 = add i32 %workers, 1
  %threads = zext i32 %threads32 to i64
  %all = mul i64 %threads, %uncontended_cost
  %cheap = icmp ule i64 %all, %cost
  %worth = or i1 %little, %cheap
  br i1 %worth, label %claim, label %look
claim:
  %claimed = cmpxchg ptr %updaters.at, i32 0, i32 -1 acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %claimed, 1
  br i1 %mine, label %self, label %look
self:
  call void %uncontended(ptr %block, i64 %begin, i64 %end, i32 0, i32 1)
  store atomic i32 0, ptr %updaters.at seq_cst, align 4
  %w = load atomic i32, ptr %waiting.at seq_cst, align 4
  %any = icmp ne i32 %w, 0
  br i1 %any, label %ring, label %out
ring:
  call void @wake(ptr %pool, ptr %updaters.at, i32 2147483647)
  ret void
"""


def _update_together() -> str:
    """Return code that waits for an update without atomics, then runs on the pool."""
    return f"""look:
  %first = load atomic i32, ptr %updaters.at monotonic, align 4
  br label %try
try:
  %seen = phi i32 [ %first, %look ], [ %other, %enter ]
  %closed = icmp slt i32 %seen, 0
  br i1 %closed, label %sleep, label %enter
sleep:
  %up = atomicrmw add ptr %waiting.at, i32 1 seq_cst
  call void @wait(ptr %pool, ptr %updaters.at, i32 -1)
  %down = atomicrmw sub ptr %waiting.at, i32 1 seq_cst
  br label %look
enter:
  %more = add i32 %seen, 1
  %swap = cmpxchg ptr %updaters.at, i32 %seen, i32 %more acquire monotonic
  %other = extractvalue {{ i32, i1 }} %swap, 0
  %in = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %in, label %together, label %try
together:
  call void @{abi.POOL_RUN}(ptr %pool, ptr %task, ptr %block, i64 %begin, i64 %end, i64 %cost, i64 %slots, i64 %lanes)
  %left = atomicrmw sub ptr %updaters.at, i32 1 release
  br label %out
out:
  ret void
}}
"""


def sleeping(system: str, machine: str) -> str:
    """Return how threads sleep on this system: "futex", "pthread" or "windows" (`platform.system()`, `platform.machine()`)."""
    if system == "Windows":
        return "windows"
    return "futex" if system == "Linux" and machine in _FUTEX_NUMBERS else "pthread"


def pool_module(machine: str, kind: str) -> str:
    """Return the LLVM IR of the pool for a CPU architecture. ``kind``: the result of `sleeping`."""
    sleep = {"futex": _FUTEX, "pthread": _PTHREAD, "windows": _WINDOWS}[kind]
    if kind == "futex":
        sleep = sleep.replace("NUMBER", str(_FUTEX_NUMBERS[machine]))
    declaration, pause = _PAUSES.get(machine, ("", ""))
    intrinsics = "".join(f"declare i64 @llvm.{name}.i64(i64, i64)\n" for name in ("smin", "umin"))
    run = _decide() + _publish() + _help_and_wait(pause)
    return declaration + intrinsics + sleep + _drain() + _worker(pause) + run + _update_uncontended() + _update_together()
