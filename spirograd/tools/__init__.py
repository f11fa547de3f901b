"""`sg.tools`: pictures, videos, windows and PLY files from fields and arrays.

Pillow and imageio-ffmpeg come with the extra ``spirograd[media]``.
"""

from spirograd.base import later as _later
from spirograd.tools.pictures import imread, imresize, imwrite
from spirograd.tools.ply import PLYWriter
from spirograd.tools.showing import imshow
from spirograd.tools.videos import VideoManager
from spirograd.tools.window import GUI

__all__ = ["GUI", "PLYWriter", "VideoManager", "imread", "imresize", "imshow", "imwrite"]

__getattr__ = _later.attributes("spirograd.tools", __all__, _later.LATER_TOOLS)
