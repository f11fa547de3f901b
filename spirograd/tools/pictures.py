"""Pictures as files: arrays of shape (width, height) or (width, height, channels), of which element (0, 0) is the lower left corner."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError, render
from spirograd.tools.media_packages import media_package

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {0: None, 1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_WITHOUT_ALPHA = (".jpg", ".jpeg", ".bmp")


def as_array(img: object) -> Array:
    """Convert a field, an array of any library, or nested lists to an array of NumPy."""
    if hasattr(img, "to_numpy"):
        return np.asarray(img.to_numpy())
    return np.asarray(img.detach().cpu() if hasattr(img, "detach") else img)


def as_bytes(img: object) -> npt.NDArray[np.uint8]:
    """Convert ``img`` to bytes of the same shape: floats in [0, 1] become 0 to 255; of larger unsigned integers the upper eight bits
    remain.

    Raises SpirogradTypeError for other types, SpirogradValueError for other shapes.
    """
    array = as_array(img)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        message = f"a picture has the shape (width, height) or (width, height, 1, 3 or 4), got {array.shape}"
        raise SpirogradValueError(message)
    if array.dtype.kind == "f":
        array = np.multiply(np.clip(np.nan_to_num(array), 0.0, 1.0), 255.0)
    elif array.dtype.kind == "u":
        array = np.right_shift(array, 8 * (array.dtype.itemsize - 1))
    else:
        hint = "convert it: `.astype(np.uint8)` if it holds 0 to 255, `.astype(np.float32)` if it holds 0 to 1"
        raise SpirogradTypeError(f"a picture holds floats in [0, 1] or unsigned integers, got {array.dtype}", None, hint)
    return np.asarray(array, np.float64).astype(np.uint8)


def picture(img: object) -> Image:
    """Convert ``img`` to an image of Pillow, whose first row is at the top."""
    rows = np.ascontiguousarray(as_bytes(img).swapaxes(0, 1)[::-1])
    image: Image = media_package("PIL.Image", "a picture").fromarray(rows[..., 0] if rows.ndim == 3 and rows.shape[2] == 1 else rows)
    return image


def imwrite(img: object, filename: str | PathLike[str]) -> None:
    """Write a picture in the format of the suffix of ``filename``: ``.png``, ``.jpg``, ``.bmp`` and others that Pillow writes.

    ``img``: a field or array of shape (width, height) or (width, height, 1, 3 or 4), with element (0, 0) in the lower left corner; floats
    in [0, 1] or unsigned integers, of which the upper eight bits count. JPEG and BMP leave out the fourth channel. Raises
    SpirogradTypeError and SpirogradValueError for other arrays, SpirogradValueError for a suffix that Pillow does not know, and
    SpirogradRuntimeError without Pillow.
    """
    image, name = picture(img), str(filename)
    if image.mode == "RGBA" and name.lower().endswith(_WITHOUT_ALPHA):
        image = image.convert("RGB")
    try:
        image.save(name)
    except ValueError as why:
        raise SpirogradValueError(render(f"cannot write a picture to {name!r}: {why}", None, "use a suffix such as `.png`")) from None


def imread(filename: str | PathLike[str], channels: int = 0) -> npt.NDArray[np.uint8]:
    """Read the picture in the file ``filename`` as bytes of shape (width, height, channels), with element (0, 0) in the lower left corner.

    ``channels``: 0 for those of the file, 1 for grey, 2 for grey and opacity, 3 for colours, 4 for colours and opacity. Raises
    SpirogradValueError for other numbers, and SpirogradRuntimeError without Pillow.
    """
    if channels not in _MODES:
        raise SpirogradValueError(f"`channels` is 0, 1, 2, 3 or 4, got {channels!r}")
    with media_package("PIL.Image", "a picture").open(filename) as image:
        own = image.mode if image.mode in _MODES.values() else "RGBA" if "transparency" in image.info else "RGB"
        rows = np.asarray(image.convert(_MODES[channels] or own))
    return np.ascontiguousarray((rows if rows.ndim == 3 else rows[..., None])[::-1].swapaxes(0, 1))


def imresize(img: object, w: int, h: int | None = None) -> Array:
    """Scale ``img`` to ``w`` times ``h`` elements (``h`` is ``w`` by default), each the nearest one towards the origin.

    Raises SpirogradValueError for arrays of one axis, and for extents below 1.
    """
    array, height = as_array(img), w if h is None else h
    if array.ndim < 2 or min(w, height) < 1 or not array.size:
        given = f"an array of shape {array.shape} to be scaled to {w} by {height}"
        raise SpirogradValueError(f"`imresize` takes an array with at least two axes and positive extents, got {given}")
    columns, rows = (np.arange(new) * old // new for new, old in ((w, array.shape[0]), (height, array.shape[1])))
    return np.asarray(array[columns[:, None], rows[None, :]])
