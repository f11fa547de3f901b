"""What tests of `@real_func` share."""

from typing import Any


def functions(kernel: Any) -> list[str]:
    """The functions of the kernel IR that was compiled last."""
    return [line.split('"')[1] for line in kernel.ir("kernel").splitlines() if line.startswith("function ")]


def called(kernel: Any) -> bool:
    """Whether a call of a function that accesses memory is in what the code generator gets. Not on the interpreter, which inlines them."""
    return "device.ir" not in kernel.stages() or "call_memory[" in kernel.ir("device")
