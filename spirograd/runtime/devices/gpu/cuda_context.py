"""The context of a device on CUDA, for compiled code: see `Driver.switch`.

Where another context is current, the device's context is pushed, and popped again, so that other users of CUDA in the thread keep theirs.
In a thread without one, the context of device 0 is made current permanently, which saves time. Other libraries take the current context as
the choice of their device, so this is done only for device 0, their default. The lowest bit of a context is set if it is to stay current.
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
