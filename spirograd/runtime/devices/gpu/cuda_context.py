"""The context of a device on CUDA, for compiled code: see `Driver.switch`.

Where another context is current, the device's is pushed, and popped again, so that other users of CUDA in the thread keep theirs. In a
thread without one, that of device 0 is made current for good, which saves time. Other libraries take that as the choice of their device,
so it is for the device that they take anyway, the first one. A context is given with its lowest bit set if it is to stay.
"""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Functions, i64, stack

PUSHED = 1
driver = Functions(context_get="i32 (ptr)", context_set="i32 (ptr)", context_push="i32 (ptr)", context_pop="i32 (ptr)")


def sg_enter(given: int) -> int:
    context = given - (given & 1)
    current = stack(8)
    i64[current] = 0
    driver.context_get(current)
    if i64[current] == context:
        return 0
    if i64[current] == 0 and given & 1 == 1:
        return -driver.context_set(context)
    code = driver.context_push(context)
    if code != 0:
        return -code
    return PUSHED


def sg_leave(entered: int) -> None:
    dropped = stack(8)
    if entered == PUSHED:
        driver.context_pop(dropped)


def sg_forget() -> None:
    return
