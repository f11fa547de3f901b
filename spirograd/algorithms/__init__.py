"""Sorting, scans, reductions and selections of one-dimensional fields and ndarrays, as kernels of the library.

They run on the device of the session, and keep their scratch memory for the next call.
"""

from spirograd.algorithms.scans import PrefixSumExecutor, exclusive_scan, inclusive_scan, reduce
from spirograd.algorithms.selections import histogram, run_length_encode, select, unique
from spirograd.algorithms.sorting import argsort, parallel_sort

__all__ = [
    "PrefixSumExecutor", "argsort", "exclusive_scan", "histogram", "inclusive_scan", "parallel_sort", "reduce", "run_length_encode",
    "select", "unique",
]  # fmt: skip
