"""Numbers of writes to memory: see `allocations.Allocation.generations`."""

import itertools

# One clock for all allocations: taking the next tick is atomic, so that two threads can never write the same generation.
tick = itertools.count(1).__next__
