"""Passes that insert checks into kernels, and passes that refuse what a device cannot do."""
