"""Runs the corpus and random programs under drivers of devices that the machine does not have."""
