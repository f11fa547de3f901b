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
    "SG_ARCH": Knob("", "Back end of `init`, whatever its `arch` says (cpu, cuda, amdgpu, vulkan, wgpu, metal, interpreter, python, gpu)."),
    "SG_DEVICE": Knob("", "Which device to use where there are several: its number, or a part of its name."),
    "SG_WGPU_BACKEND": Knob("", "What wgpu runs on: vulkan, metal, d3d12 or gl; by default the platform's own."),
    "SG_VULKAN_QUEUES": Knob("1", "How many queues of a Vulkan device streams are spread over, where it has so many; by default 1."),
    "SG_LIBCUDA": Knob("", "The CUDA driver's library; by default the one that the system finds."),
    "SG_LIBHIP": Knob("", "HIP's library, libamdhip64; by default the one that is loaded already, else the one that the system finds."),
    "SG_DEBUG": Knob("", "1: as `init(debug=True)`."),
    "SG_DUMP": Knob("", "Folder that receives every stage of every kernel compiled."),
    "SG_OVERRIDE": Knob("", "Folder of stages that replace the compiler's, as SG_DUMP writes them (`.spv`, `.ll`, `.ptx`, `.hsaco`)."),
    "SG_FUSE_TASKS_RAW": Knob("1", "0: fuse only parallel loops of which none writes what another touches."),
    "SG_FUSE_TASKS_DIAG": Knob("", "1: kernels that are compiled say on stderr which parallel loops were fused, and why others not."),
    "QD_AGGRESSIVE_KERNEL_FUSION": Knob("1", "As SG_FUSE_TASKS, by the name it has in the family."),
    "QD_AGGRESSIVE_KERNEL_FUSION_RAW": Knob("1", "As SG_FUSE_TASKS_RAW."),
    "QD_AGGRESSIVE_KERNEL_FUSION_DIAG": Knob("", "As SG_FUSE_TASKS_DIAG."),
    "SG_VALIDATE": Knob("", "1: run spirv-val on every SPIR-V module."),
    "SG_VALIDATION": Knob("", "1: enable the Vulkan validation layer and turn its messages into exceptions."),
    "SG_VERIFY": Knob("", "1: verify the IR after every pass."),
    "SG_INTERPRET_AS": Knob("", "A target, such as cpu: the interpreter runs the tasks that its passes make, to find what they access; loops: the CPU's vectors, too."),
    "SG_CACHE_DIR": Knob("", "Folder of the offline cache; by default the user's cache folder."),
    "SG_CACHE_KEY": Knob("", "Key of the offline cache, 16 characters or more, where users or machines share it; by default the user's."),
    "SG_OFFLINE_CACHE": Knob("1", "0: no offline cache."),
    "SG_NUM_THREADS": Knob("", "Threads of the CPU back end."),
    "SG_CHECK_TAPES": Knob("", "1: tapes check that reverses find the memory that they need, as with `init(debug=True)`."),
    "SG_DEBUG_ADSTACK": Knob("", "1: each launch of a gradient says on stderr how it uses the memory of adstacks."),
    "QD_DEBUG_ADSTACK": Knob("", "The same, by the name it has in the family."),
    "SG_LOG": Knob("", "Log level: trace, debug, info, warn, error."),
    "SG_GUI": Knob("", "Where `GUI` writes its frames, instead of showing them: a folder, or a file `.gif` or `.mp4`."),
    "SG_GUI_FRAMES": Knob("", "After so many frames a `GUI` closes itself."),
    "SG_TRACEBACK": Knob("", "1: show the compiler's own frames in errors."),
}


def get(name: str) -> str:
    """The value of a declared variable, or its default; KeyError if it is not declared."""
    knob = KNOBS[name]
    return os.environ.get(name, knob.default)


def switched_off(*names: str) -> str:
    """Of declared variables that are on by default, the first that is switched off, as it is set: ``NAME=0``; "" if all are on."""
    return next((f"`{name}={get(name)}`" for name in names if not flag(name)), "")


def flag(name: str) -> bool:
    """Whether a declared variable is switched on."""
    return get(name).lower() not in ("", "0", "false", "off", "no")
