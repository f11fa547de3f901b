"""The current device on HIP, for compiled code: see `Driver.switch`. A context is the number of a device."""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Functions, i32, stack

driver = Functions(device_current="i32 (ptr)", device_set="i32 (i32)", last_error="i32 ()")


def sg_enter(device: int) -> int:
    current = stack(8)
    i32[current] = 0
    driver.device_current(current)
    before = i32[current]
    if before == device:
        return 0
    code = driver.device_set(device)
    if code != 0:
        return -code
    return before + 1


def sg_leave(entered: int) -> None:
    if entered > 0:
        driver.device_set(entered - 1)


def sg_forget() -> None:
    driver.last_error()
