"""Random whole programs: several kernels, Python between their launches, tapes and other derivatives of it all."""
