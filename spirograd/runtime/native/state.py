"""The state of a call that compiled code launches, as LLVM IR: its fields, and the functions that read and change them."""

from __future__ import annotations

# All that lies on the stack takes less than a page: for more, Windows needs a function of its C library.
MOST_BLOCK_BYTES = 2048
MOST_HELD = 32
MOST_BUFFERS = 8
_BUFFER_BYTES = 80  # of a Py_buffer, whose layout is the same in all versions of Python

# The fields of `%state`, in order. IR names the number of a field in angle brackets, as in `i32 <words>`: see `resolved`.
_FIELDS = {
    "arguments": "ptr",  # the tuple of the call
    "current": "ptr",  # the current object: a reference, or null
    "words": "ptr",  # what is known of an array
    "block": "ptr",  # the argument block
    "held": "i64",  # how many references are held until the launch is done
    "held_objects": f"[{MOST_HELD} x ptr]",
    "result": "ptr",  # of the call: a reference, null for None
    "buffers": "i64",  # how many buffers are held until then
    "held_buffers": f"[{MOST_BUFFERS} x [{_BUFFER_BYTES} x i8]]",
}


def resolved(text: str) -> str:
    """``text`` with the numbers of fields in place of their names."""
    for number, name in enumerate(_FIELDS):
        text = text.replace(f"<{name}>", str(number))
    return text


STATE = """
%state = type { FIELDS }
define internal void @begin(ptr %s, ptr %args) nounwind {
  %current = getelementptr %state, ptr %s, i32 0, i32 <current>
  %held = getelementptr %state, ptr %s, i32 0, i32 <held>
  %result = getelementptr %state, ptr %s, i32 0, i32 <result>
  %buffers = getelementptr %state, ptr %s, i32 0, i32 <buffers>
  store ptr %args, ptr %s
  store ptr null, ptr %current
  store i64 0, ptr %held
  store ptr null, ptr %result
  store i64 0, ptr %buffers
  ret void
}
define internal ptr @current(ptr %s) nounwind {
  %at = getelementptr %state, ptr %s, i32 0, i32 <current>
  %object = load ptr, ptr %at
  ret ptr %object
}
define internal void @become(ptr %s, ptr %new) nounwind {
  %at = getelementptr %state, ptr %s, i32 0, i32 <current>
  %old = load ptr, ptr %at
  store ptr %new, ptr %at
  call void @Py_DecRef(ptr %old)
  ret void
}
define internal ptr @word(ptr %s, i64 %offset) nounwind {
  %at = getelementptr %state, ptr %s, i32 0, i32 <words>
  %words = load ptr, ptr %at
  %word = getelementptr i8, ptr %words, i64 %offset
  ret ptr %word
}
define internal ptr @entry(ptr %s, i64 %offset) nounwind {
  %at = getelementptr %state, ptr %s, i32 0, i32 <block>
  %block = load ptr, ptr %at
  %entry = getelementptr i8, ptr %block, i64 %offset
  ret ptr %entry
}
define internal void @hold(ptr %s, ptr %object) nounwind {
  %count.at = getelementptr %state, ptr %s, i32 0, i32 <held>
  %count = load i64, ptr %count.at
  %at = getelementptr %state, ptr %s, i32 0, i32 <held_objects>, i64 %count
  call void @Py_IncRef(ptr %object)
  store ptr %object, ptr %at
  %more = add i64 %count, 1
  store i64 %more, ptr %count.at
  ret void
}
define internal void @drop(ptr %s) nounwind {
start:
  call void @become(ptr %s, ptr null)
  %count.at = getelementptr %state, ptr %s, i32 0, i32 <held>
  %count = load i64, ptr %count.at
  store i64 0, ptr %count.at
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %more, %drop ]
  %end = icmp eq i64 %k, %count
  br i1 %end, label %done, label %drop
drop:
  %at = getelementptr %state, ptr %s, i32 0, i32 <held_objects>, i64 %k
  %object = load ptr, ptr %at
  call void @Py_DecRef(ptr %object)
  %more = add i64 %k, 1
  br label %look
done:
  %buffers.at = getelementptr %state, ptr %s, i32 0, i32 <buffers>
  %buffers = load i64, ptr %buffers.at
  store i64 0, ptr %buffers.at
  br label %next
next:
  %b = phi i64 [ 0, %done ], [ %b.more, %release ]
  %all = icmp eq i64 %b, %buffers
  br i1 %all, label %end.drop, label %release
release:
  %buffer = getelementptr %state, ptr %s, i32 0, i32 <held_buffers>, i64 %b
  call void @PyBuffer_Release(ptr %buffer)
  %b.more = add i64 %b, 1
  br label %next
end.drop:
  ret void
}
""".replace("FIELDS", ", ".join(_FIELDS.values()))
