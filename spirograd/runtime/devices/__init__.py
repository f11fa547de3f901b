"""One module per device, loaded by name when asked for."""
