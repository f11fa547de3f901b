"""Passes over the IR: pure functions from kernel to kernel, one per file."""
