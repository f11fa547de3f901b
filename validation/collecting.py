"""The kernels that a case runs, gathered in a session of the CPU, to be compiled for any device."""

from __future__ import annotations

import spirograd as sg
from spirograd.survey.collecting import Source, collecting
from validation.case import Case


def kernels_of(case: Case) -> list[Source]:
    """What a case compiles, in that order."""
    with collecting() as collector:
        try:
            # How well LLVM optimises is nothing to the kernels, and takes half of the time.
            sg.init(arch="cpu", **{"offline_cache": False, "opt_level": 0, **dict(case.options)})
            case.run(*case.args)
        finally:
            sg.reset()
    return collector.sources()
