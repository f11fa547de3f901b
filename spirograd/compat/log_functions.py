"""The logging functions of the Taichi family, which programs call, and replace to receive messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

_LOGGER = logging.getLogger("spirograd")
# Levels of Python's logging by the family's names.
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_NAMES = {number: name for name, number in _LEVELS.items()}


def _get_logging(name: str) -> Callable[[Any], None]:
    """Return the function that logs messages of the level ``name``."""
    function: Callable[[Any], None] = FUNCTIONS[name]
    return function


def _function(level: int) -> Callable[[Any], None]:
    def log(message: object) -> None:
        _LOGGER.log(level, "%s", message, stacklevel=2)

    return log


FUNCTIONS: dict[str, Any] = {**{name: _function(level) for name, level in _LEVELS.items()}, "_get_logging": _get_logging}


class Redirected(logging.Filter):
    """A handler that passes messages to the functions by which a program has replaced those of ``module``, a member's `_logging`."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        super().__init__()
        self._module = module

    def filter(self, record: logging.LogRecord) -> bool:
        name = _NAMES.get(record.levelno, "")
        replaced = self._module.get(name)
        if replaced is None or replaced is FUNCTIONS.get(name):
            return True
        replaced(record.getMessage())
        return False


def redirect(module: Mapping[str, object]) -> None:
    """Send messages to the functions that ``module`` then contains."""
    _LOGGER.addFilter(Redirected(module))
