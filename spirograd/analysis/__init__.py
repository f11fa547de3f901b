"""Facts about IR: effects, sizes that the host can compute."""
