"""From a kernel to a launch of its gradient.

`gradient` is `kernel.grad`, `specialized` the derivative of a compiled kernel, `plan` its launch. `autodiff` defines the derivatives
themselves; users and `ad` decide which ones a program needs.
"""
