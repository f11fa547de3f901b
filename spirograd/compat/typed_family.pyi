"""What type checkers and editors see of the members of the family, all names of spirograd included."""

from types import ModuleType

from spirograd import *  # noqa: F403
from spirograd import algorithms as algorithms
from spirograd import aot as aot
from spirograd import errors as errors
from spirograd import linalg as linalg
from spirograd import profiler as profiler
from spirograd import simt as simt
from spirograd import ui as ui
from spirograd.api import init as init
from spirograd.compat.facade import CPUWorkScheduling as CPUWorkScheduling
from spirograd.compat.facade import DeviceCapability as DeviceCapability
from spirograd.compat.facade import dump_compile_config as dump_compile_config
from spirograd.compat.facade import hex_to_rgb as hex_to_rgb
from spirograd.compat.facade import rgb_to_hex as rgb_to_hex
from spirograd.types import sparse_matrix_builder as sparse_matrix_builder

opengl: str
gles: str
dx11: str
dx12: str
x86_64: str
TRACE: str
DEBUG: str
INFO: str
WARN: str
ERROR: str
CRITICAL: str

# Modules inside of the family's package, for programs that reach there.
lang: ModuleType
experimental: ModuleType
