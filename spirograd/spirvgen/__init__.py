"""Device IR to SPIR-V."""
