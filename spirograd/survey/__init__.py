"""Compilation of a program's kernels by the compilers of many devices, on a machine that has none of these devices."""
