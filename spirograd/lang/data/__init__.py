"""Fields, arrays and tensors: data that kernels read and write."""
