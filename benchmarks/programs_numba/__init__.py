"""Some programs of `benchmarks.programs` for numba, whose language is another one: as its users would write them."""
