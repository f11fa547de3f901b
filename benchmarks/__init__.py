"""Benchmarks, beside peers and the limits of the machine: `python -m benchmarks --help`; docs/performance.md explains the figures."""
