"""``python -m spirograd.compat.taichi program.py``: see `spirograd.compat.stand_in`."""

from spirograd.compat.stand_in import main

main("taichi")
