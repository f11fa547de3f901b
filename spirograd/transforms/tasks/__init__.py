"""Passes that form tasks from kernels: offloading, fusion, reductions, placement of adstacks."""
