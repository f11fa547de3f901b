"""The steps of prepared launches, as LLVM IR: what `code.py` follows lists of.

They work on the argument block, and on one current object: `argument` and `member` set it, others compare it or store what it holds. The
words of an array are those of `recording.packed` for an ndarray, and those of the buffer for a NumPy array.
"""

from __future__ import annotations

# PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS; where things are in a Py_buffer, after the address of the elements.
_BUFFER_FLAGS = 0x3D
_LENGTH, _DIMENSIONS, _FORMAT, _SHAPE = 16, 36, 40, 48

HELPERS = """
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
  %plain = call i1 @is_exactly(ptr %object, ptr @py_int)
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
  %plain = call i1 @is_exactly(ptr %object, ptr @py_float)
  br i1 %plain, label %read, label %other
other:
  %whole = call i1 @is_exactly(ptr %object, ptr @py_int)
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
  %tick = call ptr @PyObject_CallNoArgs(ptr @sg_next)
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


def _fitted(helper: str, number: str, operands: str, place: str, narrowing: str = "", stored: str = "") -> str:
    """The body of a step: the current object as a ``number`` by a function of `HELPERS`, at ``place`` in the argument block; as a
    ``stored`` if there is a ``narrowing``."""
    pair = f"{{ {number}, i1 }}"
    arguments = ", ".join(["ptr %s", *([operands] if operands else [])])
    narrow = f"  %narrow = {narrowing} {number} %value to {stored}\n" if narrowing else ""
    return f"""
  %found = call {pair} @{helper}({arguments})
  %value = extractvalue {pair} %found, 0
  %good = extractvalue {pair} %found, 1
{narrow}  %entry = call ptr @entry(ptr %s, i64 {place})
  store {stored or number} {"%narrow" if narrowing else "%value"}, ptr %entry
  ret i1 %good
"""


# What each step does, and its operands. Objects are given by address, places in the argument block by offset.
STEPS = {
    "argument": (
        "the current object becomes argument number a",
        """
  %at = getelementptr %state, ptr %s, i32 0, i32 <arguments>
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
    "given": (
        "it becomes the object a",
        """
  %object = inttoptr i64 %a to ptr
  call void @Py_IncRef(ptr %object)
  call void @become(ptr %s, ptr %object)
  ret i1 true
""",
    ),
    "entry": (
        "it becomes entry a of the sequence that it is",
        """
  %list = call ptr @current(ptr %s)
  %item = call ptr @PySequence_GetItem(ptr %list, i64 %a)
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
        "the object a, called with it, must return True",
        """
  %function = inttoptr i64 %a to ptr
  %object = call ptr @current(ptr %s)
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %object, ptr null)
  call void @Py_DecRef(ptr %answer)
  %good = icmp eq ptr %answer, @py_true
  ret i1 %good
""",
    ),
    "integer32": (
        "it must be an int from a to b, which goes to c",
        _fitted("integer", "i64", "i64 %a, i64 %b", "%c", "trunc", "i32"),
    ),
    "integer64": (
        "the same, as 64 bits",
        _fitted("integer", "i64", "i64 %a, i64 %b", "%c"),
    ),
    "float32": (
        "it must be a float or an int, which goes to a",
        _fitted("number", "double", "", "%a", "fptrunc", "float"),
    ),
    "float64": (
        "the same, as 64 bits",
        _fitted("number", "double", "", "%a"),
    ),
    "boolean": (
        "it must be a bool, which goes to a",
        """
  %object = call ptr @current(ptr %s)
  %on = icmp eq ptr %object, @py_true
  %off = icmp eq ptr %object, @py_false
  %good = or i1 %on, %off
  %value = zext i1 %on to i32
  %entry = call ptr @entry(ptr %s, i64 %a)
  store i32 %value, ptr %entry
  ret i1 %good
""",
    ),
    "array": (
        "it becomes its attribute with the name a, a tuple that `recording.packed` made, whose words must begin with b",
        """
  %name = inttoptr i64 %a to ptr
  %owner = call ptr @current(ptr %s)
  %packed.all = call ptr @PyObject_GetAttr(ptr %owner, ptr %name)
  call void @become(ptr %s, ptr %packed.all)
  %known = icmp ne ptr %packed.all, null
  br i1 %known, label %open, label %no
open:
  %packed = call ptr @PyTuple_GetItem(ptr %packed.all, i64 0)
  %some = icmp ne ptr %packed, null
  br i1 %some, label %read, label %no
read:
  %words = call ptr @PyBytes_AsString(ptr %packed)
  %good = icmp ne ptr %words, null
  br i1 %good, label %compare, label %no
compare:
  %at = getelementptr %state, ptr %s, i32 0, i32 <words>
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
  %count.at = getelementptr %state, ptr %s, i32 0, i32 <buffers>
  %count = load i64, ptr %count.at
  %buffer = getelementptr %state, ptr %s, i32 0, i32 <held_buffers>, i64 %count
  %status = call i32 @PyObject_GetBuffer(ptr %object, ptr %buffer, i32 {_BUFFER_FLAGS})
  %got = icmp eq i32 %status, 0
  br i1 %got, label %look, label %no
look:
  %more = add i64 %count, 1
  store i64 %more, ptr %count.at
  %words.at = getelementptr %state, ptr %s, i32 0, i32 <words>
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
  %words.at = getelementptr %state, ptr %s, i32 0, i32 <words>
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
        "the same of 64 bits, which must not all be 0",
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
        "its item a is held until the launch is done: of a tuple that `recording.packed` made",
        """
  %packed.all = call ptr @current(ptr %s)
  %item = call ptr @PyTuple_GetItem(ptr %packed.all, i64 %a)
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
    "names": (
        "in the table a, after a version and a count, keys and objects follow in turn, and the dictionary b must have these objects under "
        "these keys, none where the object is 0; c: the address of its version (0: it has none), which saves look-ups while it is equal",
        """
start:
  %table = inttoptr i64 %a to ptr
  %dict = inttoptr i64 %b to ptr
  %versioned = icmp ne i64 %c, 0
  br i1 %versioned, label %compare, label %search
compare:
  %version.at = inttoptr i64 %c to ptr
  %version = load i64, ptr %version.at
  %saved = load i64, ptr %table
  %current = icmp eq i64 %version, %saved
  br i1 %current, label %yes, label %search
search:
  %now = phi i64 [ 0, %start ], [ %version, %compare ]
  %count.at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count.at
  br label %look
look:
  %k = phi i64 [ 0, %search ], [ %more, %next ]
  %end = icmp eq i64 %k, %count
  br i1 %end, label %save, label %next
next:
  %more = add i64 %k, 1
  %twice = shl i64 %more, 1
  %key.at = getelementptr i64, ptr %table, i64 %twice
  %key = load ptr, ptr %key.at
  %value.at = getelementptr i64, ptr %key.at, i64 1
  %wanted = load ptr, ptr %value.at
  %item = call ptr @PyDict_GetItem(ptr %dict, ptr %key)
  %same = icmp eq ptr %item, %wanted
  br i1 %same, label %look, label %no
save:
  store i64 %now, ptr %table
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
""",
    ),
    "words": (
        "in the table a of b pairs, each word must be what is at the address before it",
        """
start:
  %table = inttoptr i64 %a to ptr
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %more, %next ]
  %end = icmp eq i64 %k, %b
  br i1 %end, label %yes, label %next
next:
  %more = add i64 %k, 1
  %twice = shl i64 %k, 1
  %pair = getelementptr i64, ptr %table, i64 %twice
  %at = load ptr, ptr %pair
  %word.at = getelementptr i64, ptr %pair, i64 1
  %wanted = load i64, ptr %word.at
  %word = load i64, ptr %at
  %same = icmp eq i64 %word, %wanted
  br i1 %same, label %look, label %no
yes:
  ret i1 true
no:
  ret i1 false
""",
    ),
    "number": (
        "it becomes the int that the object a returns, called without arguments, whose low 32 bits go to b",
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
        "the result of the call becomes what the object a returns, called without arguments",
        """
  %function = inttoptr i64 %a to ptr
  %result = call ptr @PyObject_CallNoArgs(ptr %function)
  %at = getelementptr %state, ptr %s, i32 0, i32 <result>
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
  %at = getelementptr %state, ptr %s, i32 0, i32 <held_objects>, i64 %b
  %dict = load ptr, ptr %at
  %good = call i1 @set_tick(ptr %dict, ptr %key)
  ret i1 %good
""",
    ),
}
