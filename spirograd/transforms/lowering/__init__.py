"""Passes from kernel IR to what code generators take: memory, arguments, operations that a device lacks."""
