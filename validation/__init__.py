"""Programs that check the whole: a corpus of kernels, compiled for every profile, checked by other people's tools, run on every device.

`python -m validation` runs it; see docs/validation.md.
"""
