"""`imshow`: one picture in a window."""

from __future__ import annotations

from spirograd.tools.pictures import as_array
from spirograd.tools.window import GUI


def imshow(img: object, title: str = "imshow") -> None:
    """Show the picture ``img`` (see `imwrite`) in a window with this ``title`` until it is closed. Without a display, it becomes one frame
    of `GUI`.
    """
    array = as_array(img)
    width, height = array.shape[:2]
    with GUI(title, res=(width, height)) as gui:
        while gui.running:
            gui.set_image(array)
            gui.show()
            if not gui.visible:
                return
