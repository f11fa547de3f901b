"""An emulator of RDNA3 (gfx11, wave32): it runs the code objects of target "amdgpu" on NumPy, without a card.

Encodings, operands and the pseudocode of instructions come from tables that the package tinygrad generates from AMD's documents of the
instruction set; nothing else of that package is used.
"""
