"""All environment variables, in one table."""

from __future__ import annotations

import os

from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Knob:
    """An environment variable: its default as text, and one line of documentation."""

    default: str
    doc: str


KNOBS: dict[str, Knob] = {
    "SG_ARCH": Knob("", "Back end that overrides the `arch` of `init`: a name such as cpu or cuda, or gpu for the first GPU that works."),
    "SG_DEVICE": Knob("", "Which device to use where there are several: its number, or a part of its name."),
    "SG_WGPU_BACKEND": Knob("", "The API that wgpu uses: vulkan, metal, d3d12 or gl; by default that of the platform."),
    "SG_VULKAN_QUEUES": Knob("1", "The number of queues of a Vulkan device that streams use, if it has that many; by default 1."),
    "SG_LIBCUDA": Knob("", "The CUDA driver's library; by default the one that the system finds."),
    "SG_LIBHIP": Knob("", "HIP's library, libamdhip64; by default the one that is already loaded, else the one that the system finds."),
    "SG_DEBUG": Knob("", "1: as `init(debug=True)`."),
    "SG_DUMP": Knob("", "Folder that receives every stage of every kernel compiled."),
    "SG_OVERRIDE": Knob("", "Folder of stages that replace the compiler's, as SG_DUMP writes them (`.spv`, `.ll`, `.ptx`, `.hsaco`)."),
    "SG_FUSE_TASKS_RAW": Knob("1", "0: fuse parallel loops only if none of them writes memory that another one accesses."),
    "SG_FUSE_TASKS_DIAG": Knob("", "1: report on stderr which parallel loops of each compiled kernel were fused, and why not others."),
    "QD_AGGRESSIVE_KERNEL_FUSION": Knob("1", "The name of SG_FUSE_TASKS in Quadrants."),
    "QD_AGGRESSIVE_KERNEL_FUSION_RAW": Knob("1", "The name of SG_FUSE_TASKS_RAW in Quadrants."),
    "QD_AGGRESSIVE_KERNEL_FUSION_DIAG": Knob("", "The name of SG_FUSE_TASKS_DIAG in Quadrants."),
    "SG_VALIDATE": Knob("", "1: run spirv-val on every SPIR-V module."),
    "SG_VALIDATION": Knob("", "1: enable the Vulkan validation layer and turn its messages into exceptions."),
    "SG_VERIFY": Knob("", "1: verify the IR after every pass."),
    "SG_INTERPRET_AS": Knob("", "A target, such as cpu: interpret kernels after its passes, to check accesses; loops: with vectors."),
    "SG_CACHE_DIR": Knob("", "Folder of the offline cache; by default the user's cache folder."),
    "SG_CACHE_KEY": Knob("", "Key of the offline cache, 16 characters or more, where users or machines share it; by default the user's."),
    "SG_OFFLINE_CACHE": Knob("1", "0: switch the offline cache off."),
    "SG_NUM_THREADS": Knob("", "Number of threads of the CPU back end."),
    "SG_CHECK_TAPES": Knob("", "1: tapes check that the reverse pass reads the memory that it needs."),
    "SG_DEBUG_ADSTACK": Knob("", "1: report on stderr, for each launch of a gradient, how it uses the memory of adstacks."),
    "QD_DEBUG_ADSTACK": Knob("", "The name of SG_DEBUG_ADSTACK in Quadrants."),
    "SG_KERNEL_COVERAGE": Knob("", "1: write which lines of kernels ran, for coverage.py; 0: do not; by default where it measures."),
    "QD_KERNEL_COVERAGE": Knob("", "The name of SG_KERNEL_COVERAGE in Quadrants."),
    "SG_LOG": Knob("", "Log level: trace, debug, info, warn, error."),
    "SG_GUI": Knob("", "Folder, or file `.gif` or `.mp4`, to which `GUI` writes its frames instead of showing them."),
    "SG_GUI_FRAMES": Knob("", "Number of frames after which a `GUI` closes."),
    "SG_TRACEBACK": Knob("", "1: show the compiler's own frames in errors."),
}


def get(name: str) -> str:
    """Return the value of a declared variable, or its default. Raises KeyError if it is not declared."""
    knob = KNOBS[name]
    return os.environ.get(name, knob.default)


def switched_off(*names: str) -> str:
    """Return the setting, such as ``NAME=0``, of the first of these variables (on by default) that is switched off; "" if all are on."""
    return next((f"`{name}={get(name)}`" for name in names if not flag(name)), "")


def flag(name: str) -> bool:
    """Return whether a declared variable is switched on."""
    return get(name).lower() not in ("", "0", "false", "off", "no")
