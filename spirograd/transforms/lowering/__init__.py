"""Passes from kernel IR to the input of code generators: they lower memory, arguments, and operations that a device lacks."""
