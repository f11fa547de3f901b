"""The limit of the stack of the calling thread, as LLVM IR: a function of the C library of each system returns the end of the stack."""

from __future__ import annotations

from spirograd.llvmgen import abi

# The bytes of a stack of unknown size that may be used: less than the default of any system.
_UNKNOWN = 256 << 10

_LINUX = """declare i64 @pthread_self()
declare i32 @pthread_getattr_np(i64, ptr)
declare i32 @pthread_attr_getstack(ptr, ptr, ptr)
declare i32 @pthread_attr_destroy(ptr)
define internal i64 @sg_stack_end() nounwind {
  %attributes = alloca [128 x i8], align 16
  %low = alloca i64
  %size = alloca i64
  %self = call i64 @pthread_self()
  %failed = call i32 @pthread_getattr_np(i64 %self, ptr %attributes)
  %fails = icmp ne i32 %failed, 0
  br i1 %fails, label %unknown, label %known
known:
  %read = call i32 @pthread_attr_getstack(ptr %attributes, ptr %low, ptr %size)
  %destroyed = call i32 @pthread_attr_destroy(ptr %attributes)
  %end = load i64, ptr %low
  ret i64 %end
unknown:
  ret i64 0
}
"""
_MACOS = """declare ptr @pthread_self()
declare i64 @pthread_get_stackaddr_np(ptr)
declare i64 @pthread_get_stacksize_np(ptr)
define internal i64 @sg_stack_end() nounwind {
  %self = call ptr @pthread_self()
  %high = call i64 @pthread_get_stackaddr_np(ptr %self)
  %size = call i64 @pthread_get_stacksize_np(ptr %self)
  %end = sub i64 %high, %size
  ret i64 %end
}
"""
_WINDOWS = """declare void @GetCurrentThreadStackLimits(ptr, ptr)
define internal i64 @sg_stack_end() nounwind {
  %low = alloca i64
  %high = alloca i64
  call void @GetCurrentThreadStackLimits(ptr %low, ptr %high)
  %end = load i64, ptr %low
  ret i64 %end
}
"""
_OTHERS = "define internal i64 @sg_stack_end() nounwind {\n  ret i64 0\n}\n"
_ENDS = {"Linux": _LINUX, "Darwin": _MACOS, "Windows": _WINDOWS}


def stack_limit_module(system: str) -> str:
    """Return the LLVM IR of `abi.STACK_LIMIT` and `abi.MAIN_STACK` for a system (`platform.system()`)."""
    return (
        _ENDS.get(system, _OTHERS)
        + f"""declare ptr @llvm.stacksave.p0()
@{abi.MAIN_STACK} = global [2 x i64] zeroinitializer, align 8
define i64 @{abi.STACK_LIMIT}() nounwind {{
  %here = call ptr @llvm.stacksave.p0()
  %address = ptrtoint ptr %here to i64
  %low = load i64, ptr @{abi.MAIN_STACK}
  %high.at = getelementptr i64, ptr @{abi.MAIN_STACK}, i64 1
  %high = load i64, ptr %high.at
  %above = icmp ugt i64 %address, %low
  %below = icmp ult i64 %address, %high
  %main = and i1 %above, %below
  br i1 %main, label %known, label %ask
known:
  %first = add i64 %low, {abi.STACK_RESERVE}
  ret i64 %first
ask:
  %end = call i64 @sg_stack_end()
  %unknown = icmp eq i64 %end, 0
  %near = sub i64 %address, {_UNKNOWN}
  %chosen = select i1 %unknown, i64 %near, i64 %end
  %limit = add i64 %chosen, {abi.STACK_RESERVE}
  ret i64 %limit
}}
"""
    )
