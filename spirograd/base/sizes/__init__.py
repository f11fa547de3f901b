"""Symbolic sizes: expressions that the host evaluates at a launch from arguments, extents and memory, without the IR.

Examples are trip counts of loops, lengths of adstacks and extents of index spaces. Sizes are not IR, because artifacts contain them, which
the runtime launches without the compiler, and because they are mathematical integers: integers of IR have a type, and wrap.
"""
