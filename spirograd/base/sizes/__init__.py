"""Symbolic sizes: what the host computes at a launch from arguments, extents and memory, without the IR.

Trip counts of loops, lengths of adstacks, extents of index spaces. They are data of their own rather than IR because they live in
artifacts, which the runtime launches without the compiler, and because they are numbers of mathematics: IR integers have a type, and wrap.
"""
