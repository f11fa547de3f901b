"""The handler of memory faults (SIGSEGV, SIGBUS) as LLVM IR: it reports which kernel accessed an address outside of all memory.

The system calls the handler in the thread of the fault, so it uses only functions that are safe in signal handlers: its own table, `write`,
`sleep`, `signal` and `raise`. It finds the code by the program counter, and, for functions of the C library that kernels call (memset), by
their return address, so that launches need not record anything. Then the former handler runs, or the process ends as it would have.
"""

from __future__ import annotations

from spirograd.base.records import dataclass

HANDLER, TABLE = "sg_fault", "sg_fault_table"
# The table, in 64-bit words: the address and the number of records; the address of IN_FLIGHT words, each the address of a text or 0; the
# texts before and after these; the former handlers of SIGSEGV and SIGBUS; whether a thread runs the handler. A text is two words, its
# address and its length. A record is four words: begin and end of code, and its text.
RECORDS, COUNT, FLIGHT, BEFORE, AFTER, FORMER_SEGV, FORMER_BUS, BUSY, WORDS = range(9)
RECORD_WORDS, IN_FLIGHT = 4, 8
SIGBUS, SIGSEGV = 7, 11
_STACK_NEAR = 1 << 16  # a fault so close to the stack pointer is a stack overflow, after which the stack cannot be read


@dataclass(frozen=True)
class _Machine:
    """Byte offsets in Linux's `ucontext_t`. ``link``: the offset of the register with the return address; -1: it is on the stack."""

    counter: int
    stack: int
    link: int = -1


_MACHINES = {"x86_64": _Machine(168, 160), "aarch64": _Machine(440, 432, 424)}


def supported(system: str, machine: str) -> bool:
    """Return whether there is a handler for a system and a machine, as `platform` names them."""
    return system == "Linux" and machine in _MACHINES


def fault_handler_module(system: str, machine: str) -> str:
    """Return the LLVM IR of `HANDLER`, a `void (i32 signal, ptr info, ptr context)`, and of `TABLE`. Return "" if there is none."""
    if not supported(system, machine):
        return ""
    at = _MACHINES[machine]
    link = _LINK_ON_STACK if at.link < 0 else _LINK_IN_REGISTER.format(link=at.link)
    return _TEXT + _HANDLER.format(counter=at.counter, stack=at.stack, link=link, near=_STACK_NEAR, both=2 * _STACK_NEAR)


_TEXT = f"""@{TABLE} = global [{WORDS} x i64] zeroinitializer, align 8
declare i64 @write(i32, ptr, i64)
declare i32 @sleep(i32)
declare ptr @signal(i32, ptr)
declare i32 @raise(i32)
define internal i64 @sg_fault_word(i64 %base, i64 %k) nounwind {{
  %p = inttoptr i64 %base to ptr
  %at = getelementptr i64, ptr %p, i64 %k
  %word = load volatile i64, ptr %at
  ret i64 %word
}}
define internal void @sg_fault_say(i64 %text) nounwind {{
  %address = call i64 @sg_fault_word(i64 %text, i64 0)
  %length = call i64 @sg_fault_word(i64 %text, i64 1)
  %p = inttoptr i64 %address to ptr
  %done = call i64 @write(i32 2, ptr %p, i64 %length)
  ret void
}}
define internal i64 @sg_fault_find(i64 %pc) nounwind {{
  %table = ptrtoint ptr @{TABLE} to i64
  %records = call i64 @sg_fault_word(i64 %table, i64 {RECORDS})
  %count = call i64 @sg_fault_word(i64 %table, i64 {COUNT})
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %next ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %body, label %none
body:
  %offset = mul i64 %k, {8 * RECORD_WORDS}
  %record = add i64 %records, %offset
  %begin = call i64 @sg_fault_word(i64 %record, i64 0)
  %end = call i64 @sg_fault_word(i64 %record, i64 1)
  %after = icmp uge i64 %pc, %begin
  %before = icmp ult i64 %pc, %end
  %inside = and i1 %after, %before
  br i1 %inside, label %match, label %next
next:
  %k.next = add i64 %k, 1
  br label %head
match:
  %text = add i64 %record, 16
  ret i64 %text
none:
  ret i64 0
}}
define internal void @sg_fault_say_flight() nounwind {{
  %table = ptrtoint ptr @{TABLE} to i64
  %flight = call i64 @sg_fault_word(i64 %table, i64 {FLIGHT})
  %before = call i64 @sg_fault_word(i64 %table, i64 {BEFORE})
  call void @sg_fault_say(i64 %before)
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %next ]
  %more = icmp ult i64 %k, {IN_FLIGHT}
  br i1 %more, label %body, label %end
body:
  %text = call i64 @sg_fault_word(i64 %flight, i64 %k)
  %there = icmp ne i64 %text, 0
  br i1 %there, label %say, label %next
say:
  call void @sg_fault_say(i64 %text)
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
end:
  %after = call i64 @sg_fault_word(i64 %table, i64 {AFTER})
  call void @sg_fault_say(i64 %after)
  ret void
}}
define internal i1 @sg_fault_is_flight() nounwind {{
  %table = ptrtoint ptr @{TABLE} to i64
  %flight = call i64 @sg_fault_word(i64 %table, i64 {FLIGHT})
  %exists = icmp ne i64 %flight, 0
  br i1 %exists, label %look, label %none
look:
  %first = call i64 @sg_fault_word(i64 %flight, i64 0)
  %some = icmp ne i64 %first, 0
  ret i1 %some
none:
  ret i1 false
}}
"""
_LINK_ON_STACK = """  %link.at = inttoptr i64 %sp to ptr
  %link = load i64, ptr %link.at
"""
_LINK_IN_REGISTER = """  %link.at = getelementptr i8, ptr %context, i64 {link}
  %link = load i64, ptr %link.at
"""
_HANDLER = f"""define void @{HANDLER}(i32 %signal, ptr %info, ptr %context) nounwind {{{{
  %pc.at = getelementptr i8, ptr %context, i64 {{counter}}
  %pc = load i64, ptr %pc.at
  %own = call i64 @sg_fault_find(i64 %pc)
  %is.own = icmp ne i64 %own, 0
  br i1 %is.own, label %say, label %called
called:
  %sp.at = getelementptr i8, ptr %context, i64 {{stack}}
  %sp = load i64, ptr %sp.at
  %address.at = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %address.at
  %distance = sub i64 %address, %sp
  %shifted = add i64 %distance, {{near}}
  %overflow = icmp ult i64 %shifted, {{both}}
  br i1 %overflow, label %flight, label %caller
caller:
{{link}}  %by = call i64 @sg_fault_find(i64 %link)
  %is.called = icmp ne i64 %by, 0
  br i1 %is.called, label %say, label %flight
flight:
  %flies = call i1 @sg_fault_is_flight()
  br i1 %flies, label %say, label %chain
say:
  %text = phi i64 [ %own, %0 ], [ %by, %caller ], [ 0, %flight ]
  %busy.at = getelementptr [{WORDS} x i64], ptr @{TABLE}, i64 0, i64 {BUSY}
  %busy = atomicrmw xchg ptr %busy.at, i64 1 seq_cst
  %other = icmp ne i64 %busy, 0
  br i1 %other, label %wait, label %first
wait:
  %slept = call i32 @sleep(i32 1)
  ret void
first:
  %known = icmp ne i64 %text, 0
  br i1 %known, label %say.kernel, label %say.flight
say.kernel:
  call void @sg_fault_say(i64 %text)
  br label %chain
say.flight:
  call void @sg_fault_say_flight()
  br label %chain
chain:
  %is.segv = icmp eq i32 %signal, {SIGSEGV}
  %which = select i1 %is.segv, i64 {FORMER_SEGV}, i64 {FORMER_BUS}
  %table = ptrtoint ptr @{TABLE} to i64
  %former = call i64 @sg_fault_word(i64 %table, i64 %which)
  %is.function = icmp ugt i64 %former, 1
  br i1 %is.function, label %pass, label %end
pass:
  %function = inttoptr i64 %former to ptr
  call void %function(i32 %signal, ptr %info, ptr %context)
  ret void
end:
  %default = call ptr @signal(i32 %signal, ptr null)
  %raised = call i32 @raise(i32 %signal)
  ret void
}}}}
"""
