"""Arrays between pages that cannot be accessed: a read or a write outside of one ends the process. Not on Windows."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np


def fenced(contents: np.ndarray[Any, Any], at_end: bool) -> np.ndarray[Any, Any]:
    """A copy of ``contents`` that ends, or begins, where memory does."""
    page = mmap.PAGESIZE
    inside = -(-max(contents.nbytes, 1) // page) * page
    pages = mmap.mmap(-1, inside + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for fence in (start, start + page + inside):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), page, 0):
            raise OSError("pages cannot be protected here")
    first = page + (inside - contents.nbytes if at_end else 0)
    array = np.frombuffer(pages, contents.dtype, contents.size, first).reshape(contents.shape)
    array[...] = contents
    return array
