"""The words by which compiled code runs the reverse pass of a tape that has followed a sequence of launches.

A walk goes through the steps of the sequence from the last one to the first. Each step puts copies back, launches a derivative, and puts
other copies back: see `runtime.native.reverse_code`, and `ad.sequence_walk` for what Python does.
"""

from __future__ import annotations

# The words of a walk, by byte offset: how many steps are left; how many are left to the next call; whether the derivative of the next step
# has been launched; whether memory was written since its generations changed; the addresses of the steps and of the `TICKS`; the list of
# the arguments of the launches.
LEFT, LEAST, HAS_LAUNCHED, PENDING, STEPS, TICKS, ARGUMENTS = range(0, 56, 8)
# The words of a step: how it is launched; the bytes with the record of the launch, see `runtime.native.launch_code`; the address of its
# own argument block; the object that gives launches their numbers; the `copy_words` before the launch, and after it.
MODE, RECORD, STEP_BLOCK, NUMBER, COPIED, RESTORED = range(0, 48, 8)
STEP_BYTES = 48
# How a step is launched: not at all; by Python; by its record; by its own argument block, which has yet to be packed, or is complete.
NO_LAUNCH, BY_PYTHON, BY_RECORD, FIXED, PACKED = range(5)
