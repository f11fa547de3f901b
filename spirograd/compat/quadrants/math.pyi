from spirograd.math import *  # noqa: F403
