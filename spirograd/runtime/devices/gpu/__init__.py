"""GPUs that CUDA or HIP drives, which have the same functions under other names: one device class over two drivers.

`cuda` and `hip` open devices. The parts that both share: driver, features, opening, memory, stream, transfer, readback, modules, call,
device.
"""
