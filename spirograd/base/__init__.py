"""Types, source locations, errors, environment variables and the compiled artifact: the package that every other one may import."""
