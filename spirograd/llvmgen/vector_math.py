"""The functions of libmvec (glibc), which LLVM calls in vectorised loops when a scalar call names its vector variant."""

from __future__ import annotations

# f64 on four lanes (AVX2); at most 4 ulp off (glibc manual, "Errors in Math Functions"). f32 math is expanded before code generation.
LIBMVEC = "libmvec"
LIBMVEC_FILE = "libmvec.so.1"
LANES = 4
_ARITY = {"exp": 1, "log": 1, "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan2": 2, "tanh": 1, "pow": 2}


def has(name: str) -> bool:
    """Return whether libm's ``name`` has a vector form."""
    return name in _ARITY


def vector_name(name: str) -> str:
    """Return the symbol of the vector form of libm's ``name``."""
    return f"_ZGVdN{LANES}{'v' * _ARITY[name]}_{name}"


def all_symbols() -> tuple[str, ...]:
    return tuple(vector_name(name) for name in _ARITY)
