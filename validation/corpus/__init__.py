"""The cases, a file for each theme. Read as a tour of the language: each function is one program and what NumPy says about it."""
