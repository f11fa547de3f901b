"""Differentiable mpm88: 64 steps of 8,192 particles, and the gradient of where they land with respect to how they start."""

import spirograd as sg
from benchmarks.differentiable_mpm88 import Simulation

simulation = Simulation(sg, 8192, 64)
CASES = {"mpm88 64 steps": (simulation.forward, 1), "mpm88 64 steps, gradient": (simulation.gradient, 1)}
RATIOS = {"mpm88, gradient / forward": ("mpm88 64 steps, gradient", "mpm88 64 steps")}
