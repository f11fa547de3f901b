"""spirograd under the names of its family: ``import spirograd.compat.taichi as ti``, ``import spirograd.compat.quadrants as qd``."""
