"""Benchmarks: `python -m benchmarks [--peer PYTHON] [--arch cpu|vulkan] [names...]`."""
