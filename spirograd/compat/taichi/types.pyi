from spirograd.types import *  # noqa: F403
