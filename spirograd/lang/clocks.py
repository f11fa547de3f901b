"""Clocks of devices, read in kernels."""

from __future__ import annotations

from typing import Any

from spirograd.base.dtypes import i64
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError
from spirograd.ir import ops as ir
from spirograd.lang import context, scalar


def clock_counter() -> Any:
    """Return a counter of the device (i64) that increases as time passes, for differences within one kernel.

    It counts cycles of the multiprocessor on CUDA, ticks of the device on Vulkan (with VK_KHR_shader_clock), of the time stamp counter on
    x86 and of the timer on other CPUs and AMD's GPUs; on the interpreter, the number of reads. Accesses to memory keep their place before
    or after it; arithmetic need not, so store the results to be timed. It has no gradient.

    Raises SpirogradUnsupportedError on devices without such a clock (wgpu, Metal), SpirogradRuntimeError outside of kernels.
    """
    if context.current_trace() is None:
        raise SpirogradRuntimeError("`clock_counter` reads the clock of the device: call it in a kernel")
    return scalar.Value(scalar.builder().emit(ir.clock, type=i64))


def clock_freq_hz() -> int:
    """Return the rate of `clock_counter` in Hz at the nominal speed of the device, in Python. The actual speed may differ.

    Raises SpirogradUnsupportedError on back ends other than CUDA, whose drivers do not report it.
    """
    session = context.session()
    rate = session.clock_hz()
    if rate is None:
        hint = "compare differences of `clock_counter` with each other, or time kernels by `sg.profiler`"
        raise SpirogradUnsupportedError(f"the rate of the clock is not known on `{session.arch}`", None, hint)
    return int(rate)
