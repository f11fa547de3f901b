"""Launches that bypass Python: compiled functions that check and pack the arguments of a call, and run its kernel."""
