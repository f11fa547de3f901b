"""Passes that split kernels into tasks and transform tasks: offloading, fusion, reductions, placement of adstacks."""
