"""Benchmarks: `python -m benchmarks [--peer PYTHON] [--arch cpu|vulkan|wgpu] [--against ARCH] [names...]`."""
