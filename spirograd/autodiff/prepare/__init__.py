"""Passes that make a kernel easier to differentiate: they promote memory to SSA values, and remove loop-carried values."""
