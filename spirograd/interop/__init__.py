"""Kernels as functions of other frameworks: torch and JAX."""
