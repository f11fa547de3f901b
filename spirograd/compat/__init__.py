"""spirograd under the names of the Taichi family: ``import spirograd.compat.taichi as ti``, ``import spirograd.compat.quadrants as qd``."""
