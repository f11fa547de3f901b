"""Passes over the loops of CPU code, from device IR to the level "loops": they assign iterations to chunks, order them, and form
functions."""
