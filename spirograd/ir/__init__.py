"""The intermediate representation: one node class, one table of operations, structured SSA."""
