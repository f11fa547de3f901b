"""The stand-in for the driver of a GPU (standin_gpu.c), built once for each API, and what tests ask of it."""

import ctypes
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spirograd.runtime.devices.gpu import cuda, hip

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, eq=False)
class Api:
    """What differs between the APIs in tests. ``architecture``: of device 0, with ``weak`` in its place it cannot be used.
    ``error``: the name of an error by that of CUDA's."""

    arch: str
    name: str
    driver: type
    flag: str
    architecture: str
    weak: str
    version: str
    errors: dict[str, str]

    @property
    def knob(self):
        return self.driver.knob


_ERRORS = {
    "INVALID_VALUE": "InvalidValue",
    "ILLEGAL_ADDRESS": "IllegalAddress",
    "LAUNCH_FAILED": "LaunchFailure",
    "INVALID_PTX": "NoBinaryForGpu",
}
CUDA = Api("cuda", "CUDA", cuda.CudaDriver, "-DCUDA", "90", "61", "CUDA 13.0", {name: f"CUDA_ERROR_{name}" for name in _ERRORS})
HIP = Api(
    "amdgpu", "HIP", hip.HipDriver, "-DHIP", "gfx1100", "gfx803", "HIP 6.3", {name: f"hipError{hips}" for name, hips in _ERRORS.items()}
)
APIS = (CUDA, HIP)


class Launch(ctypes.Structure):
    """One launch as the driver got it."""

    _fields_ = [
        ("_name", ctypes.c_char * 256),
        ("groups", ctypes.c_uint32),
        ("group_size", ctypes.c_uint32),
        ("_bytes", ctypes.c_ubyte * 4096),
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_uint64),
    ]

    @property
    def name(self):
        return self._name.decode()

    @property
    def block(self):
        return bytes(self._bytes[: self.size])


class StandIn:
    """The library at ``path`` for ``api``. Functions are called by the names of `Driver`."""

    def __init__(self, path, api):
        self.path = path
        self.api = api
        self.library = ctypes.CDLL(str(path))
        self.library.standin_launch.restype = ctypes.POINTER(Launch)
        self.library.standin_machine.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        self.library.standin_hold_stream.argtypes = (ctypes.c_uint64, ctypes.c_int)
        self.library.standin_pending.restype = ctypes.c_uint64

    def reset(self):
        self.library.standin_reset()

    def hold(self, on=True, stream=None):
        """Have all streams, or one of them, do no work until further notice."""
        if stream is None:
            self.library.standin_hold(on)
        else:
            self.library.standin_hold_stream(stream, on)

    def fail(self, symbol, code, times=1):
        """The next calls of a function give an error."""
        self.library.standin_fail(symbol.encode(), code, times)

    def calls(self, symbol):
        return self.library.standin_calls(symbol.encode())

    def live(self, what):
        return self.library.standin_live(what.encode())

    def machine(self, devices=1, architecture=None, nbytes=1 << 30):
        self.library.standin_machine(devices, (architecture or self.api.architecture).encode(), nbytes)

    @property
    def pending(self):
        """Pieces of work that were asked for and are not done."""
        return self.library.standin_pending()

    @property
    def branches(self):
        """How often a stream joined the recording of another one."""
        return self.library.standin_branches()

    @property
    def depth(self):
        """CUDA: contexts on the stack of this thread. HIP: the device that is current."""
        return self.library.standin_depth()

    @property
    def last_error(self):
        """What other users of HIP in this thread would find."""
        return self.library.standin_last_error() if self.api is HIP else 0

    @property
    def launches(self):
        return [self.library.standin_launch(i).contents for i in range(self.library.standin_launches())]

    def leftovers(self):
        """What exists after all devices were closed."""
        kinds = ("memory", "pinned", "events", "modules", "graphs", "streams", "pools")
        return {kind: self.live(kind) for kind in kinds if self.live(kind)}


@cache
def build(folder, api, *flags):
    """The stand-in for an API, compiled into ``folder``."""
    path = Path(folder) / f"libstandin_{api.arch}{''.join(flags)}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", api.flag, *flags, "-o", path, SOURCE, "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return StandIn(path, api)
