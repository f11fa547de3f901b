"""GPUs driven by CUDA or HIP: one device class over two drivers, whose functions differ only in their names.

`cuda` and `hip` open devices. Shared modules: driver, features, opening, allocator, stream, transfer, readback, modules, call, device.
"""
