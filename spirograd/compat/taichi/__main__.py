"""``python -m spirograd.compat.taichi program.py``: see `spirograd.compat.stand_in`."""

from spirograd.compat.stand_in import main

if __name__ == "__main__":
    main("taichi")
