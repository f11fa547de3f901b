"""The logging functions of the Taichi family, which programs call, and replace to receive messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

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
Log = Callable[[object], None]  # a function that logs a message
_NAMES = {number: name for name, number in _LEVELS.items()}


def _get_logging(name: str) -> Log:
    """Return the function that logs messages of the level ``name``."""
    return _BY_LEVEL[name]


def _function(level: int) -> Log:
    def log(message: object) -> None:
        _LOGGER.log(level, "%s", message, stacklevel=2)

    return log


_BY_LEVEL = {name: _function(level) for name, level in _LEVELS.items()}
FUNCTIONS: dict[str, object] = {**_BY_LEVEL, "_get_logging": _get_logging, "supported_log_levels": list(_LEVELS)}


class Redirected(logging.Filter):
    """A handler that passes messages to the functions by which a program has replaced those of ``module``, a member's `_logging`."""

    def __init__(self, module: Mapping[str, object]) -> None:
        super().__init__()
        self._module = module

    def filter(self, record: logging.LogRecord) -> bool:
        name = _NAMES.get(record.levelno, "")
        replaced = self._module.get(name)
        if not callable(replaced) or replaced is FUNCTIONS.get(name):
            return True
        replaced(record.getMessage())
        return False


def redirect(module: Mapping[str, object]) -> None:
    """Send messages to the functions that ``module`` then contains."""
    _LOGGER.addFilter(Redirected(module))
