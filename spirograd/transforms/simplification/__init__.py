"""Passes that make kernels smaller without changing what they compute."""
