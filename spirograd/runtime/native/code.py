"""The compiled side of prepared launches, as LLVM IR: one function for all kernels, which follows lists of steps that Python writes.

`sg_native(self, args)` is a built-in function (METH_O): ``args`` is the tuple of the arguments of a call. ``self`` is a tuple whose first
item, bytes, holds records one after the other (`RECORD` names their words), each for launches of one kind, and then a word 0. The first
record whose steps all succeed launches its kernel, and the call returns the result. If none does it returns NotImplemented, and nothing
has happened: Python is then to do the launch, or to say what is wrong with it. So a step may fail for any reason, with an exception or
without.

A step is four words: the address of a function `i1 (ptr state, i64 a, i64 b, i64 c)`, and its operands; address 0 ends a list.
`step_code.py` has all of them.

Only functions of Python's C API are called, none of which assumes the layout of an object. References that are needed after the launch
are held meanwhile: without the GIL, other threads may change anything.
"""

from __future__ import annotations

from spirograd.runtime.native.state import MOST_BLOCK_BYTES, STATE, resolved
from spirograd.runtime.native.step_code import HELPERS, STEPS

FUNCTION = "sg_native"
# The words of a record; ``locked``, ``after`` and ``template`` are offsets in it. Then the steps before the launch, those that come once
# the outer lock is held, those after the launch, and an argument block, into which the steps put what is packed anew.
RECORD = (
    "nbytes", "number", "arguments", "block_bytes", "function", "context", "outer_acquire", "outer_release", "acquire", "release",
    "locked", "after", "template",
)  # fmt: skip
STEP_BYTES = 32

PYTHON_API = {
    "Py_IncRef": "void (ptr)",
    "Py_DecRef": "void (ptr)",
    "PyBuffer_Release": "void (ptr)",
    "PyBytes_AsString": "ptr (ptr)",
    "PyDict_GetItem": "ptr (ptr, ptr)",
    "PyDict_SetItem": "i32 (ptr, ptr, ptr)",
    "PyErr_Clear": "void ()",
    "PyErr_ExceptionMatches": "i32 (ptr)",
    "PyErr_Fetch": "void (ptr, ptr, ptr)",
    "PyErr_Occurred": "ptr ()",
    "PyErr_Restore": "void (ptr, ptr, ptr)",
    "PyEval_RestoreThread": "void (ptr)",
    "PyEval_SaveThread": "ptr ()",
    "PyFloat_AsDouble": "double (ptr)",
    "PyLong_AsLongLong": "i64 (ptr)",
    "PyObject_CallFunctionObjArgs": "ptr (ptr, ...)",
    "PyObject_CallNoArgs": "ptr (ptr)",
    "PyObject_GetAttr": "ptr (ptr, ptr)",
    "PyObject_GetBuffer": "i32 (ptr, ptr, i32)",
    "PyObject_RichCompareBool": "i32 (ptr, ptr, i32)",
    "PyObject_Type": "ptr (ptr)",
    "PySequence_GetItem": "ptr (ptr, i64)",
    "PyTuple_GetItem": "ptr (ptr, i64)",
    "PyTuple_Size": "i64 (ptr)",
}
# Objects, under the names that the code has for them.
OBJECTS = {"none": None, "refused": NotImplemented, "true": True, "false": False, "int": int, "float": float, "exception": Exception}

_GLOBALS = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
; the next number of a write (`allocations.tick`); the words of `validity`
@sg_next = external global i8
@sg_validity = external global [2 x i64]
"""

_MAIN = f"""
define internal i1 @walk(ptr %s, ptr %first) nounwind {{
start:
  br label %look
look:
  %at = phi ptr [ %first, %start ], [ %next, %step ]
  %function = load ptr, ptr %at
  %end = icmp eq ptr %function, null
  br i1 %end, label %yes, label %step
step:
  %a.at = getelementptr i64, ptr %at, i64 1
  %b.at = getelementptr i64, ptr %at, i64 2
  %c.at = getelementptr i64, ptr %at, i64 3
  %a = load i64, ptr %a.at
  %b = load i64, ptr %b.at
  %c = load i64, ptr %c.at
  %next = getelementptr i8, ptr %at, i64 {STEP_BYTES}
  %good = call i1 %function(ptr %s, i64 %a, i64 %b, i64 %c)
  br i1 %good, label %look, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
; Whether the epoch of a record is the present one, and launches need not go through Python: see `validity`.
define internal i1 @holds(i64 %number) nounwind {{
  %time = load atomic i64, ptr @sg_validity monotonic, align 8
  %suspended.at = getelementptr i64, ptr @sg_validity, i64 1
  %suspended = load atomic i64, ptr %suspended.at monotonic, align 8
  %present = icmp eq i64 %number, %time
  %free = icmp eq i64 %suspended, 0
  %valid = and i1 %present, %free
  ret i1 %valid
}}
; Take a lock, of which this is the method; 0 is none. Whether that did not fail.
define internal i1 @take(i64 %method) nounwind {{
  %none = icmp eq i64 %method, 0
  br i1 %none, label %good, label %call
call:
  %acquire = inttoptr i64 %method to ptr
  %taken = call ptr @PyObject_CallNoArgs(ptr %acquire)
  call void @Py_DecRef(ptr %taken)
  %lost = icmp eq ptr %taken, null
  br i1 %lost, label %bad, label %good
good:
  ret i1 true
bad:
  ret i1 false
}}
; Give a lock back; an error that is set stays so.
define internal void @give(i64 %method) nounwind {{
  %none = icmp eq i64 %method, 0
  br i1 %none, label %done, label %call
call:
  %error.at = alloca [3 x ptr]
  %error.value = getelementptr ptr, ptr %error.at, i64 1
  %error.trace = getelementptr ptr, ptr %error.at, i64 2
  call void @PyErr_Fetch(ptr %error.at, ptr %error.value, ptr %error.trace)
  %release = inttoptr i64 %method to ptr
  %freed = call ptr @PyObject_CallNoArgs(ptr %release)
  call void @Py_DecRef(ptr %freed)
  %e.type = load ptr, ptr %error.at
  %e.value = load ptr, ptr %error.value
  %e.trace = load ptr, ptr %error.trace
  call void @PyErr_Restore(ptr %e.type, ptr %e.value, ptr %e.trace)
  br label %done
done:
  ret void
}}
define ptr @{FUNCTION}(ptr %self, ptr %args) nounwind {{
start:
  %s = alloca %state, align 16
  %block = alloca [{MOST_BLOCK_BYTES} x i8], align 16
  call void @begin(ptr %s, ptr %args)
  %block.at = getelementptr %state, ptr %s, i32 0, i32 <block>
  store ptr %block, ptr %block.at
  %count = call i64 @PyTuple_Size(ptr %args)
  %records = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %first = call ptr @PyBytes_AsString(ptr %records)
  br label %look
look:
  %r = phi ptr [ %first, %start ], [ %other, %skip ]
  %nbytes = load i64, ptr %r
  %end = icmp eq i64 %nbytes, 0
  br i1 %end, label %refuse, label %guard
guard:
WORDS
  %valid = call i1 @holds(i64 %number)
  %counted = icmp eq i64 %arguments, %count
  %fitting = and i1 %valid, %counted
  br i1 %fitting, label %check, label %skip
check:
  %template.at = getelementptr i8, ptr %r, i64 %template
  call void @llvm.memcpy.p0.p0.i64(ptr align 16 %block, ptr align 8 %template.at, i64 %block_bytes, i1 false)
  %before.at = getelementptr i64, ptr %r, i64 {len(RECORD)}
  %alike = call i1 @walk(ptr %s, ptr %before.at)
  br i1 %alike, label %lock, label %differs
differs:
  call void @drop(ptr %s)
  %fine = call i1 @is_fine()
  br i1 %fine, label %skip, label %failed
failed:
  %ordinary = call i32 @PyErr_ExceptionMatches(ptr @py_exception)
  %interrupt = icmp eq i32 %ordinary, 0
  br i1 %interrupt, label %raise, label %forget
forget:
  call void @PyErr_Clear()
  br label %skip
skip:
  %other = getelementptr i8, ptr %r, i64 %nbytes
  br label %look
refuse:
  call void @Py_IncRef(ptr @py_refused)
  ret ptr @py_refused

lock:
  %taken = call i1 @take(i64 %outer_acquire)
  br i1 %taken, label %tell, label %raise
tell:
  %locked.at = getelementptr i8, ptr %r, i64 %locked
  %told = call i1 @walk(ptr %s, ptr %locked.at)
  br i1 %told, label %inner, label %return.outer
inner:
  %inside = call i1 @take(i64 %acquire)
  br i1 %inside, label %again, label %lost
lost:
  call void @give(i64 %outer_release)
  br label %raise
again:  ; much may have happened while this thread waited for the locks
  %still = call i1 @holds(i64 %number)
  br i1 %still, label %run, label %return.both
return.both:
  call void @give(i64 %release)
  br label %return.outer
return.outer:
  call void @give(i64 %outer_release)
  br label %differs
run:
  %launch = inttoptr i64 %function to ptr
  %context.at = inttoptr i64 %context to ptr
  %thread = call ptr @PyEval_SaveThread()
  call void %launch(ptr %block, ptr %context.at)
  call void @PyEval_RestoreThread(ptr %thread)
  %after.at = getelementptr i8, ptr %r, i64 %after
  %noted = call i1 @walk(ptr %s, ptr %after.at)
  call void @give(i64 %release)
  call void @give(i64 %outer_release)
  br label %end.launch
end.launch:
  call void @drop(ptr %s)
  %result.at = getelementptr %state, ptr %s, i32 0, i32 <result>
  %result = load ptr, ptr %result.at
  br i1 %noted, label %done, label %failure
done:
  %void = icmp eq ptr %result, null
  br i1 %void, label %nothing, label %value
value:
  ret ptr %result
nothing:
  call void @Py_IncRef(ptr @py_none)
  ret ptr @py_none
failure:
  call void @Py_DecRef(ptr %result)
  br label %error
raise:
  call void @drop(ptr %s)
  br label %error
error:
  ret ptr null
}}
"""


def module() -> str:
    """The text of the module."""
    api = "".join(f"declare {kind.replace(' ', f' @{name}', 1)}\n" for name, kind in PYTHON_API.items())
    objects = "".join(f"@py_{name} = external global i8\n" for name in OBJECTS)
    steps = "".join(
        f"; {what}\ndefine i1 @sg_{name}(ptr %s, i64 %a, i64 %b, i64 %c) nounwind {{{body}}}\n" for name, (what, body) in STEPS.items()
    )
    words = "\n".join(
        f"  %{name}.word = getelementptr i64, ptr %r, i64 {k}\n  %{name} = load i64, ptr %{name}.word"
        for k, name in enumerate(RECORD)
        if name != "nbytes"
    )
    return resolved(api + objects + _GLOBALS + STATE + HELPERS + steps + _MAIN.replace("WORDS", words))
