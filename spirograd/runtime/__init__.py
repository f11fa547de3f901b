"""Running compiled kernels: devices, memory, launches. Knows no IR."""
