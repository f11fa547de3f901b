"""Options of compilation, which are part of the cache key. The API derives them from the options of `init`."""

from __future__ import annotations

from typing import Annotated

from spirograd.base.constraints import one_of
from spirograd.base.records import dataclass

LOOPS = "loops"  # of `CompileOptions.interpret_as`
# Decisions that measurements may make instead of the cost model, because results have the same bits either way. On the CPU: iterations of
# parallel loops run as lanes of vectors, or one by one (LLVM may vectorise them). On GPUs: the invocations of a workgroup; that an
# invocation runs one iteration at a time; that few workgroups stride over the iterations.
LANES, NO_LANES = "lanes", "no lanes"
GROUP_SIZES = {f"groups of {size:,}": size for size in (64, 128, 256, 512, 1024)}
SINGLY, FEW_GROUPS = "one iteration at a time", "few groups"
ALTERNATIVES = (LANES, NO_LANES, *GROUP_SIZES, SINGLY, FEW_GROUPS)
Alternative = Annotated[str, one_of(*ALTERNATIVES)]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """``free_contraction``: with fast math, any product may be contracted with the sum that uses it. ``flush_subnormals``: tasks on the CPU
    take subnormal floats for zeros. ``group_size``: default workgroup size on GPUs (0: the
    generator's choice). ``verify``: check the IR after each pass.
    ``warn_of_overflow``: overflow checks print a warning instead of raising an error. ``locate_nan``: check gradients step by step for NaN;
    ``locate_infinities``: for infinities, too.
    ``detect_races``: detect races between iterations of a parallel loop (interpreter only). ``unfused_by``: the setting that switches
    fusion off; ``disjoint_by``: the setting that limits it to loops of which none writes memory that another one accesses; "": loops are
    fused wherever that changes no result. ``count_on_device``: kernels of asynchronous devices count the sizes of adstacks even if the host
    could evaluate them, for programs that launch kernels without this runtime. ``overlapping``: the code is for launches with arrays that
    overlap, too: no pass assumes arrays to be disjoint. ``interpret_as``: the target whose tasks the interpreter
    runs, after the passes that move accesses, to find accesses that the program does not make; `LOOPS`: the loops
    that a CPU runs, vectors included; "": kernel IR as traced. ``alternative``: make this decision where a task lists it among
    `TaskInfo.alternatives`; "": the cost model makes all decisions. ``deterministic``: each launch gives the same bits; sums of
    floats do not depend on the order in which iterations run, and what would is an error."""

    fast_math: bool = True
    free_contraction: bool = False
    flush_subnormals: bool = False
    check_bounds: bool = False
    check_overflow: bool = False
    warn_of_overflow: bool = False
    optimize: bool = True
    opt_level: int = 3
    group_size: int = 0
    verify: bool = False
    keep_stages: bool = False
    locate_nan: bool = False
    locate_infinities: bool = False
    detect_races: bool = False
    unfused_by: str = ""
    disjoint_by: str = ""
    count_on_device: bool = False
    overlapping: bool = False
    interpret_as: str = ""
    alternative: str = ""
    deterministic: bool = False
