"""Passes between kernels and tasks: which loops become dispatches, reductions in them, places of their adstacks."""
