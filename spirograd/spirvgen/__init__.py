"""Code generators that emit SPIR-V from device IR."""
