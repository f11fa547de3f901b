"""Derivatives of kernels: from kernel IR to kernel IR, before compilation."""
