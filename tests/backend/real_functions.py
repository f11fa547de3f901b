"""What tests of `@real_func` share."""

from typing import Any


def functions(kernel: Any) -> list[str]:
    """The functions of the kernel IR that was compiled last."""
    return [line.split('"')[1] for line in kernel.ir("kernel").splitlines() if line.startswith("function ")]
