"""Passes: pure functions from kernel to kernel, one per file."""
