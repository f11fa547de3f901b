"""Passes that make a kernel easy to differentiate: values out of memory and into SSA, fewer values that loops carry."""
