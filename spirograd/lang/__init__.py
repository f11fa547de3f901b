"""The language: decorators, AST to IR, static evaluation, fields, arrays, matrices."""
