from spirograd.ad import *  # noqa: F403
