"""What every other package may use: types, locations, errors, knobs and the compiled artifact."""
