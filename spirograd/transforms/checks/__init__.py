"""Passes that insert checks into kernels, and passes that reject operations which the device lacks."""
