"""The stand-in for the CUDA driver (standin_cuda.c), built once, and what tests ask of it."""

import ctypes
import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Launch(ctypes.Structure):
    """One launch as the driver got it."""

    _fields_ = [
        ("_name", ctypes.c_char * 256),
        ("groups", ctypes.c_uint32),
        ("group_size", ctypes.c_uint32),
        ("_bytes", ctypes.c_ubyte * 256),
        ("size", ctypes.c_size_t),
    ]

    @property
    def name(self):
        return self._name.decode()

    @property
    def block(self):
        return bytes(self._bytes[: min(self.size, 256)])


class StandIn:
    """The library at ``path``."""

    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.standin_launch.restype = ctypes.POINTER(Launch)
        self._library.standin_machine.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t)
        self._library.standin_pending.restype = ctypes.c_uint64

    def reset(self):
        self._library.standin_reset()
        self._library.standin_forget_context()

    def hold(self, on=True):
        """Do no work until further notice."""
        self._library.standin_hold(on)

    def fail(self, symbol, code, times=1):
        """The next calls of a function give an error."""
        self._library.standin_fail(symbol.encode(), code, times)

    def calls(self, symbol):
        return self._library.standin_calls(symbol.encode())

    def live(self, what):
        return self._library.standin_live(what.encode())

    def machine(self, devices=1, sm=90, nbytes=1 << 30):
        self._library.standin_machine(devices, sm, nbytes)

    @property
    def pending(self):
        """Pieces of work that were asked for and are not done."""
        return self._library.standin_pending()

    @property
    def depth(self):
        """Contexts on the stack of this thread."""
        return self._library.standin_depth()

    @property
    def launches(self):
        return [self._library.standin_launch(i).contents for i in range(self._library.standin_launches())]

    def leftovers(self):
        """What exists after all devices were closed."""
        kinds = ("memory", "pinned", "events", "modules", "streams", "pools")
        return {kind: self.live(kind) for kind in kinds if self.live(kind)}


@cache
def build(folder):
    """The stand-in, compiled into ``folder``."""
    path = Path(folder) / "libstandin_cuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-lpthread"], check=True, capture_output=True, text=True)
    return StandIn(path)
