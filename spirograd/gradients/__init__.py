"""From a kernel to its gradient, launched: `kernel.grad` (`gradient`), the derivative of what a kernel was compiled to (`specialized`),
and how to launch that (`plan`). What a derivative is, is up to `autodiff`; which ones a program needs, to its user and to `ad`.
"""
