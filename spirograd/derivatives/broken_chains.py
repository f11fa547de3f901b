"""Chains of derivatives that end where no gradient can flow on: errors, warnings or nothing, as `init(ad_broken_chain=...)` says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spirograd.base.errors import SpirogradCompilationError, SpirogradRuntimeError, render
from spirograd.base.loc import Loc

if TYPE_CHECKING:
    from spirograd.lang.session_protocol import CompileTarget

logger = logging.getLogger("spirograd")


def report(target: CompileTarget, problem: str, loc: Loc | None, hint: str, while_running: bool = False) -> None:
    """Raise SpirogradCompilationError (``while_running``: SpirogradRuntimeError), or warn once of the same problem at the same line."""
    how = target.broken_chains
    if how == "error":
        if while_running:
            raise SpirogradRuntimeError(render(problem, loc, hint))
        raise SpirogradCompilationError(problem, loc, hint)
    about = (problem, str(loc))
    if how == "warn" and about not in target.warned:
        target.warned.add(about)
        logger.warning(render(problem, loc, hint))
