"""Passes over the loops of the CPU, from device IR to the level "loops": they assign iterations to chunks, order them, and form
functions."""
