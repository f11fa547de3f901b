"""Passes before differentiation: they promote memory to SSA values, and remove loop-carried values."""
