"""Programs of the family, run on its own release and on spirograd; their memory is compared and their frames are timed.

`python -m validation.family` runs the examples that the wheel of Taichi ships; see docs/validation.md.
"""
