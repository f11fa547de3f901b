"""What a GPU reaches of its limits, beside torch, JAX and quadrants: `python -m benchmarks.gpu --help`."""
