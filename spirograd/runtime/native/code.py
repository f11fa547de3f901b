"""The compiled side of prepared launches, as LLVM IR: one function for all kernels, which follows lists of steps that Python writes.

`sg_native(self, args)` is a built-in function (METH_O): ``args`` is the tuple of the arguments of a call. ``self`` is a tuple whose first
item, bytes, holds records one after the other (`RECORD` names their words), each for launches of one kind, and then a word 0. The first
record whose steps all succeed launches its kernel, and the call returns the result. If none does it returns NotImplemented, and nothing
has happened: Python is then to do the launch, or to say what is wrong with it. So a step may fail for any reason, with an exception or
without.

A step is four words: the address of a function `i1 (ptr state, i64 a, i64 b, i64 c)`, and its operands; address 0 ends a list. Steps work
on the argument block, and on one current object: `sg_argument` and `sg_member` set it, others compare it or store what it holds.

Only functions of Python's C API are called, none of which assumes the layout of an object. References that are needed after the launch
are held meanwhile: without the GIL, other threads may change anything.
"""

from __future__ import annotations

FUNCTION = "sg_native"
# The words of a record; ``after`` and ``template`` are offsets in it. Then the steps before the launch, those after it, and an argument
# block, into which the steps put what is packed anew.
RECORD = ("nbytes", "number", "arguments", "block_bytes", "function", "context", "acquire", "release", "after", "template")
STEP_BYTES = 32
MOST_BLOCK_BYTES = 8192
MOST_HELD = 32
MOST_BUFFERS = 8
# PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS, and the bytes of a Py_buffer, whose layout is the same in all versions of Python.
_BUFFER_FLAGS, _BUFFER_BYTES = 0x3D, 80
_LENGTH, _DIMENSIONS, _FORMAT, _SHAPE = 16, 36, 40, 48

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
    "PyTuple_GetItem": "ptr (ptr, i64)",
    "PyTuple_Size": "i64 (ptr)",
}
# Objects, under the names that the code has for them.
OBJECTS = {"none": None, "refused": NotImplemented, "true": True, "false": False, "int": int, "float": float, "exception": Exception}

_STATE = f"""
; arguments, current object (a reference or null), words of an array, argument block, how many references are held, these, the result (a
; reference, null for None), how many buffers are held, these
%state = type {{ ptr, ptr, ptr, ptr, i64, [{MOST_HELD} x ptr], ptr, i64, [{MOST_BUFFERS} x [{_BUFFER_BYTES} x i8]] }}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
; the next number of a write (`allocations.tick`); the words of `validity`
@next = external global i8
@validity = external global [2 x i64]

define internal void @begin(ptr %s, ptr %args) nounwind {{
  %current = getelementptr %state, ptr %s, i32 0, i32 1
  %held = getelementptr %state, ptr %s, i32 0, i32 4
  %result = getelementptr %state, ptr %s, i32 0, i32 6
  %buffers = getelementptr %state, ptr %s, i32 0, i32 7
  store ptr %args, ptr %s
  store ptr null, ptr %current
  store i64 0, ptr %held
  store ptr null, ptr %result
  store i64 0, ptr %buffers
  ret void
}}
define internal ptr @current(ptr %s) nounwind {{
  %at = getelementptr %state, ptr %s, i32 0, i32 1
  %object = load ptr, ptr %at
  ret ptr %object
}}
define internal void @become(ptr %s, ptr %new) nounwind {{
  %at = getelementptr %state, ptr %s, i32 0, i32 1
  %old = load ptr, ptr %at
  store ptr %new, ptr %at
  call void @Py_DecRef(ptr %old)
  ret void
}}
define internal ptr @word(ptr %s, i64 %offset) nounwind {{
  %at = getelementptr %state, ptr %s, i32 0, i32 2
  %words = load ptr, ptr %at
  %word = getelementptr i8, ptr %words, i64 %offset
  ret ptr %word
}}
define internal ptr @entry(ptr %s, i64 %offset) nounwind {{
  %at = getelementptr %state, ptr %s, i32 0, i32 3
  %block = load ptr, ptr %at
  %entry = getelementptr i8, ptr %block, i64 %offset
  ret ptr %entry
}}
define internal void @hold(ptr %s, ptr %object) nounwind {{
  %count.at = getelementptr %state, ptr %s, i32 0, i32 4
  %count = load i64, ptr %count.at
  %at = getelementptr %state, ptr %s, i32 0, i32 5, i64 %count
  call void @Py_IncRef(ptr %object)
  store ptr %object, ptr %at
  %more = add i64 %count, 1
  store i64 %more, ptr %count.at
  ret void
}}
define internal void @drop(ptr %s) nounwind {{
start:
  call void @become(ptr %s, ptr null)
  %count.at = getelementptr %state, ptr %s, i32 0, i32 4
  %count = load i64, ptr %count.at
  store i64 0, ptr %count.at
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %more, %drop ]
  %end = icmp eq i64 %k, %count
  br i1 %end, label %done, label %drop
drop:
  %at = getelementptr %state, ptr %s, i32 0, i32 5, i64 %k
  %object = load ptr, ptr %at
  call void @Py_DecRef(ptr %object)
  %more = add i64 %k, 1
  br label %look
done:
  %buffers.at = getelementptr %state, ptr %s, i32 0, i32 7
  %buffers = load i64, ptr %buffers.at
  store i64 0, ptr %buffers.at
  br label %next
next:
  %b = phi i64 [ 0, %done ], [ %b.more, %release ]
  %all = icmp eq i64 %b, %buffers
  br i1 %all, label %end.drop, label %release
release:
  %buffer = getelementptr %state, ptr %s, i32 0, i32 8, i64 %b
  call void @PyBuffer_Release(ptr %buffer)
  %b.more = add i64 %b, 1
  br label %next
end.drop:
  ret void
}}
"""

_HELPERS = """
define internal i1 @is_exactly(ptr %object, ptr %type) nounwind {
  %found = call ptr @PyObject_Type(ptr %object)
  call void @Py_DecRef(ptr %found)
  %same = icmp eq ptr %found, %type
  ret i1 %same
}
; Whether there is no exception.
define internal i1 @is_fine() nounwind {
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  ret i1 %fine
}
define internal { i64, i1 } @integer(ptr %s, i64 %least, i64 %most) nounwind {
  %object = call ptr @current(ptr %s)
  %plain = call i1 @is_exactly(ptr %object, ptr @int)
  br i1 %plain, label %read, label %no
read:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %low = icmp sge i64 %value, %least
  %high = icmp sle i64 %value, %most
  %inside = and i1 %low, %high
  br i1 %inside, label %ask, label %no
ask:
  %minus = icmp eq i64 %value, -1
  br i1 %minus, label %doubt, label %yes
doubt:
  %fine = call i1 @is_fine()
  br i1 %fine, label %yes, label %no
yes:
  %some = insertvalue { i64, i1 } { i64 poison, i1 true }, i64 %value, 0
  ret { i64, i1 } %some
no:
  ret { i64, i1 } { i64 0, i1 false }
}
; A float, or an int as a float.
define internal { double, i1 } @number(ptr %s) nounwind {
  %object = call ptr @current(ptr %s)
  %plain = call i1 @is_exactly(ptr %object, ptr @float)
  br i1 %plain, label %read, label %other
other:
  %whole = call i1 @is_exactly(ptr %object, ptr @int)
  br i1 %whole, label %read, label %no
read:
  %value = call double @PyFloat_AsDouble(ptr %object)
  %minus = fcmp oeq double %value, -1.0
  br i1 %minus, label %doubt, label %yes
doubt:
  %fine = call i1 @is_fine()
  br i1 %fine, label %yes, label %no
yes:
  %some = insertvalue { double, i1 } { double poison, i1 true }, double %value, 0
  ret { double, i1 } %some
no:
  ret { double, i1 } { double 0.0, i1 false }
}
define internal i1 @set_tick(ptr %dict, ptr %key) nounwind {
  %tick = call ptr @PyObject_CallNoArgs(ptr @next)
  %failed = icmp eq ptr %tick, null
  br i1 %failed, label %no, label %set
set:
  %status = call i32 @PyDict_SetItem(ptr %dict, ptr %key, ptr %tick)
  call void @Py_DecRef(ptr %tick)
  %good = icmp eq i32 %status, 0
  ret i1 %good
no:
  ret i1 false
}
"""

# What each step does, and its operands. Objects are given by address, places in the argument block by offset.
STEPS = {
    "argument": (
        "the current object becomes argument number a",
        """
  %at = getelementptr %state, ptr %s, i32 0, i32 0
  %args = load ptr, ptr %at
  %item = call ptr @PyTuple_GetItem(ptr %args, i64 %a)
  call void @Py_IncRef(ptr %item)
  call void @become(ptr %s, ptr %item)
  ret i1 true
""",
    ),
    "member": (
        "it becomes its attribute with the name a",
        """
  %name = inttoptr i64 %a to ptr
  %owner = call ptr @current(ptr %s)
  %item = call ptr @PyObject_GetAttr(ptr %owner, ptr %name)
  call void @become(ptr %s, ptr %item)
  %there = icmp ne ptr %item, null
  ret i1 %there
""",
    ),
    "same": (
        "it must be the object a",
        """
  %wanted = inttoptr i64 %a to ptr
  %object = call ptr @current(ptr %s)
  %same = icmp eq ptr %object, %wanted
  ret i1 %same
""",
    ),
    "equal": (
        "it must be of the type b, and equal to the object a",
        """
  %wanted = inttoptr i64 %a to ptr
  %type = inttoptr i64 %b to ptr
  %object = call ptr @current(ptr %s)
  %alike = call i1 @is_exactly(ptr %object, ptr %type)
  br i1 %alike, label %compare, label %no
compare:
  %found = call i32 @PyObject_RichCompareBool(ptr %object, ptr %wanted, i32 2)
  %equal = icmp eq i32 %found, 1
  ret i1 %equal
no:
  ret i1 false
""",
    ),
    "ask": (
        "the object a, called with it, must give True",
        """
  %function = inttoptr i64 %a to ptr
  %object = call ptr @current(ptr %s)
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %object, ptr null)
  call void @Py_DecRef(ptr %answer)
  %good = icmp eq ptr %answer, @true
  ret i1 %good
""",
    ),
    "integer32": (
        "it must be an int from a to b, which goes to c",
        """
  %found = call { i64, i1 } @integer(ptr %s, i64 %a, i64 %b)
  %value = extractvalue { i64, i1 } %found, 0
  %good = extractvalue { i64, i1 } %found, 1
  %narrow = trunc i64 %value to i32
  %entry = call ptr @entry(ptr %s, i64 %c)
  store i32 %narrow, ptr %entry
  ret i1 %good
""",
    ),
    "integer64": (
        "the same, as 64 bits",
        """
  %found = call { i64, i1 } @integer(ptr %s, i64 %a, i64 %b)
  %value = extractvalue { i64, i1 } %found, 0
  %good = extractvalue { i64, i1 } %found, 1
  %entry = call ptr @entry(ptr %s, i64 %c)
  store i64 %value, ptr %entry
  ret i1 %good
""",
    ),
    "float32": (
        "it must be a float or an int, which goes to a",
        """
  %found = call { double, i1 } @number(ptr %s)
  %value = extractvalue { double, i1 } %found, 0
  %good = extractvalue { double, i1 } %found, 1
  %narrow = fptrunc double %value to float
  %entry = call ptr @entry(ptr %s, i64 %a)
  store float %narrow, ptr %entry
  ret i1 %good
""",
    ),
    "float64": (
        "the same, as 64 bits",
        """
  %found = call { double, i1 } @number(ptr %s)
  %value = extractvalue { double, i1 } %found, 0
  %good = extractvalue { double, i1 } %found, 1
  %entry = call ptr @entry(ptr %s, i64 %a)
  store double %value, ptr %entry
  ret i1 %good
""",
    ),
    "boolean": (
        "it must be a bool, which goes to a",
        """
  %object = call ptr @current(ptr %s)
  %on = icmp eq ptr %object, @true
  %off = icmp eq ptr %object, @false
  %good = or i1 %on, %off
  %value = zext i1 %on to i32
  %entry = call ptr @entry(ptr %s, i64 %a)
  store i32 %value, ptr %entry
  ret i1 %good
""",
    ),
    "array": (
        "it becomes what it has under the name a, whose words (see `recording.packed`) must begin with b",
        """
  %name = inttoptr i64 %a to ptr
  %owner = call ptr @current(ptr %s)
  %told = call ptr @PyObject_GetAttr(ptr %owner, ptr %name)
  call void @become(ptr %s, ptr %told)
  %known = icmp ne ptr %told, null
  br i1 %known, label %open, label %no
open:
  %packed = call ptr @PyTuple_GetItem(ptr %told, i64 0)
  %some = icmp ne ptr %packed, null
  br i1 %some, label %read, label %no
read:
  %words = call ptr @PyBytes_AsString(ptr %packed)
  %good = icmp ne ptr %words, null
  br i1 %good, label %compare, label %no
compare:
  %at = getelementptr %state, ptr %s, i32 0, i32 2
  store ptr %words, ptr %at
  %kind = load i64, ptr %words
  %same = icmp eq i64 %kind, %b
  ret i1 %same
no:
  ret i1 false
""",
    ),
    "buffer": (
        "it must be of the type a, and give a buffer of at most c bytes in one piece, aligned to its elements, and not empty, whose words "
        "become its words; b: the number of dimensions, the two bytes of the format, and the bytes of an element, of 16 bits each",
        f"""
  %type = inttoptr i64 %a to ptr
  %object = call ptr @current(ptr %s)
  %known = call i1 @is_exactly(ptr %object, ptr %type)
  br i1 %known, label %get, label %no
get:
  %count.at = getelementptr %state, ptr %s, i32 0, i32 7
  %count = load i64, ptr %count.at
  %buffer = getelementptr %state, ptr %s, i32 0, i32 8, i64 %count
  %status = call i32 @PyObject_GetBuffer(ptr %object, ptr %buffer, i32 {_BUFFER_FLAGS})
  %got = icmp eq i32 %status, 0
  br i1 %got, label %look, label %no
look:
  %more = add i64 %count, 1
  store i64 %more, ptr %count.at
  %words.at = getelementptr %state, ptr %s, i32 0, i32 2
  store ptr %buffer, ptr %words.at
  %dimensions.at = getelementptr i8, ptr %buffer, i64 {_DIMENSIONS}
  %dimensions = load i32, ptr %dimensions.at
  %dimensions.wide = zext i32 %dimensions to i64
  %format.at = getelementptr i8, ptr %buffer, i64 {_FORMAT}
  %format.text = load ptr, ptr %format.at
  %format = load i16, ptr %format.text, align 1
  %format.wide = zext i16 %format to i64
  %format.place = shl i64 %format.wide, 16
  %kind = or i64 %dimensions.wide, %format.place
  %wanted = and i64 %b, 4294967295
  %alike = icmp eq i64 %kind, %wanted
  %element = lshr i64 %b, 32
  %mask = sub i64 %element, 1
  %address = load i64, ptr %buffer
  %rest = and i64 %address, %mask
  %aligned = icmp eq i64 %rest, 0
  %length.at = getelementptr i8, ptr %buffer, i64 {_LENGTH}
  %length = load i64, ptr %length.at
  %some = icmp sgt i64 %length, 0
  %short = icmp sle i64 %length, %c
  %g1 = and i1 %alike, %aligned
  %g2 = and i1 %some, %short
  %good = and i1 %g1, %g2
  ret i1 %good
no:
  ret i1 false
""",
    ),
    "shape": (
        "its words become the extents of its buffer",
        f"""
  %at = call ptr @word(ptr %s, i64 {_SHAPE})
  %extents = load ptr, ptr %at
  %words.at = getelementptr %state, ptr %s, i32 0, i32 2
  store ptr %extents, ptr %words.at
  ret i1 true
""",
    ),
    "extent": (
        "the word at byte a of its words must be b",
        """
  %at = call ptr @word(ptr %s, i64 %a)
  %word = load i64, ptr %at
  %same = icmp eq i64 %word, %b
  ret i1 %same
""",
    ),
    "word32": (
        "what its words have at byte a goes to b",
        """
  %from = call ptr @word(ptr %s, i64 %a)
  %word = load i32, ptr %from
  %entry = call ptr @entry(ptr %s, i64 %b)
  store i32 %word, ptr %entry
  ret i1 true
""",
    ),
    "address": (
        "the same, as 64 bits; it must not be 0",
        """
  %from = call ptr @word(ptr %s, i64 %a)
  %word = load i64, ptr %from
  %entry = call ptr @entry(ptr %s, i64 %b)
  store i64 %word, ptr %entry
  %there = icmp ne i64 %word, 0
  ret i1 %there
""",
    ),
    "held": (
        "item a of what an array tells is held until the launch is done",
        """
  %told = call ptr @current(ptr %s)
  %item = call ptr @PyTuple_GetItem(ptr %told, i64 %a)
  %there = icmp ne ptr %item, null
  br i1 %there, label %hold, label %no
hold:
  call void @hold(ptr %s, ptr %item)
  ret i1 true
no:
  ret i1 false
""",
    ),
    "item": (
        "item a of the dictionary b must be the object c, or be missing if that is 0",
        """
  %key = inttoptr i64 %a to ptr
  %dict = inttoptr i64 %b to ptr
  %wanted = inttoptr i64 %c to ptr
  %item = call ptr @PyDict_GetItem(ptr %dict, ptr %key)
  %same = icmp eq ptr %item, %wanted
  ret i1 %same
""",
    ),
    "number": (
        "it becomes the int that the object a gives, called without arguments; the low 32 bits of that go to b",
        """
  %function = inttoptr i64 %a to ptr
  %number = call ptr @PyObject_CallNoArgs(ptr %function)
  call void @become(ptr %s, ptr %number)
  %failed = icmp eq ptr %number, null
  br i1 %failed, label %no, label %read
read:
  %value = call i64 @PyLong_AsLongLong(ptr %number)
  %narrow = trunc i64 %value to i32
  %entry = call ptr @entry(ptr %s, i64 %b)
  store i32 %narrow, ptr %entry
  %good = call i1 @is_fine()
  ret i1 %good
no:
  ret i1 false
""",
    ),
    "result": (
        "what the object a gives, called without arguments, is the result of the call",
        """
  %function = inttoptr i64 %a to ptr
  %result = call ptr @PyObject_CallNoArgs(ptr %function)
  %at = getelementptr %state, ptr %s, i32 0, i32 6
  store ptr %result, ptr %at
  %good = icmp ne ptr %result, null
  ret i1 %good
""",
    ),
    "report": (
        "unless the 32-bit word at address a is 0, the object b is called with it",
        """
  %flag.at = inttoptr i64 %a to ptr
  %flag = load i32, ptr %flag.at
  %quiet = icmp eq i32 %flag, 0
  br i1 %quiet, label %yes, label %call
yes:
  ret i1 true
call:
  %function = inttoptr i64 %b to ptr
  %number = call ptr @current(ptr %s)
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %number, ptr null)
  call void @Py_DecRef(ptr %result)
  %good = icmp ne ptr %result, null
  ret i1 %good
""",
    ),
    "call": (
        "the object a is called without arguments",
        """
  %function = inttoptr i64 %a to ptr
  %result = call ptr @PyObject_CallNoArgs(ptr %function)
  call void @Py_DecRef(ptr %result)
  %good = icmp ne ptr %result, null
  ret i1 %good
""",
    ),
    "tick": (
        "item a of the dictionary b becomes the next number of a write",
        """
  %key = inttoptr i64 %a to ptr
  %dict = inttoptr i64 %b to ptr
  %good = call i1 @set_tick(ptr %dict, ptr %key)
  ret i1 %good
""",
    ),
    "tick_held": (
        "the same of the dictionary that is held as number b",
        """
  %key = inttoptr i64 %a to ptr
  %at = getelementptr %state, ptr %s, i32 0, i32 5, i64 %b
  %dict = load ptr, ptr %at
  %good = call i1 @set_tick(ptr %dict, ptr %key)
  ret i1 %good
""",
    ),
}

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
define ptr @{FUNCTION}(ptr %self, ptr %args) nounwind {{
start:
  %s = alloca %state, align 16
  %block = alloca [{MOST_BLOCK_BYTES} x i8], align 16
  %error.at = alloca [3 x ptr]
  call void @begin(ptr %s, ptr %args)
  %block.at = getelementptr %state, ptr %s, i32 0, i32 3
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
  %time = load atomic i64, ptr @validity monotonic, align 8
  %suspended.at = getelementptr i64, ptr @validity, i64 1
  %suspended = load atomic i64, ptr %suspended.at monotonic, align 8
  %present = icmp eq i64 %number, %time
  %free = icmp eq i64 %suspended, 0
  %counted = icmp eq i64 %arguments, %count
  %valid = and i1 %present, %free
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
  %ordinary = call i32 @PyErr_ExceptionMatches(ptr @exception)
  %interrupt = icmp eq i32 %ordinary, 0
  br i1 %interrupt, label %raise, label %forget
forget:
  call void @PyErr_Clear()
  br label %skip
skip:
  %other = getelementptr i8, ptr %r, i64 %nbytes
  br label %look
refuse:
  call void @Py_IncRef(ptr @refused)
  ret ptr @refused

lock:
  %unlocked = icmp eq i64 %acquire, 0
  br i1 %unlocked, label %run, label %take
take:
  %acquire.method = inttoptr i64 %acquire to ptr
  %taken = call ptr @PyObject_CallNoArgs(ptr %acquire.method)
  call void @Py_DecRef(ptr %taken)
  %lost = icmp eq ptr %taken, null
  br i1 %lost, label %raise, label %run
run:
  %launch = inttoptr i64 %function to ptr
  %context.at = inttoptr i64 %context to ptr
  %thread = call ptr @PyEval_SaveThread()
  call void %launch(ptr %block, ptr %context.at)
  call void @PyEval_RestoreThread(ptr %thread)
  %after.at = getelementptr i8, ptr %r, i64 %after
  %noted = call i1 @walk(ptr %s, ptr %after.at)
  br i1 %unlocked, label %end.launch, label %unlock
unlock:
  %error.value = getelementptr ptr, ptr %error.at, i64 1
  %error.trace = getelementptr ptr, ptr %error.at, i64 2
  call void @PyErr_Fetch(ptr %error.at, ptr %error.value, ptr %error.trace)
  %release.method = inttoptr i64 %release to ptr
  %freed = call ptr @PyObject_CallNoArgs(ptr %release.method)
  call void @Py_DecRef(ptr %freed)
  %e.type = load ptr, ptr %error.at
  %e.value = load ptr, ptr %error.value
  %e.trace = load ptr, ptr %error.trace
  call void @PyErr_Restore(ptr %e.type, ptr %e.value, ptr %e.trace)
  br label %end.launch
end.launch:
  call void @drop(ptr %s)
  %result.at = getelementptr %state, ptr %s, i32 0, i32 6
  %result = load ptr, ptr %result.at
  br i1 %noted, label %done, label %failure
done:
  %void = icmp eq ptr %result, null
  br i1 %void, label %nothing, label %value
value:
  ret ptr %result
nothing:
  call void @Py_IncRef(ptr @none)
  ret ptr @none
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
    objects = "".join(f"@{name} = external global i8\n" for name in OBJECTS)
    steps = "".join(
        f"; {what}\ndefine i1 @sg_{name}(ptr %s, i64 %a, i64 %b, i64 %c) nounwind {{{body}}}\n" for name, (what, body) in STEPS.items()
    )
    words = "\n".join(
        f"  %{name}.word = getelementptr i64, ptr %r, i64 {k}\n  %{name} = load i64, ptr %{name}.word"
        for k, name in enumerate(RECORD)
        if name != "nbytes"
    )
    return api + objects + _STATE + _HELPERS + steps + _MAIN.replace("WORDS", words)
