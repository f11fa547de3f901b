"""Passes over the loops of the CPU, from device IR to the level "loops": which iterations run where, in which order, in which function."""
