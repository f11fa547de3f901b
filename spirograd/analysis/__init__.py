"""Analyses of IR, such as effects, dependence, and sizes that the host can compute."""
