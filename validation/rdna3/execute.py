"""A dispatch: workgroups of waves run machine code, those at the same instruction in lockstep, until all have ended.

Of sets of waves that are at different instructions the one with the lowest address runs, until it meets another: so waves that took
different branches, or left a loop earlier, come together again. A set that runs long while others wait lets them run, for it might wait
for them (a lock). At a barrier waves wait until all of their workgroup are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from validation.rdna3 import accesses, across, alu
from validation.rdna3.accesses import LaneFault, Spaces
from validation.rdna3.arithmetic import Array
from validation.rdna3.decode import Instruction, Undecodable, Unsupported, decode
from validation.rdna3.operands import scalar, write_scalar
from validation.rdna3.waves import EXEC, VCC, Waves

# After this number of instructions in a row, another set of waves runs.
_PATIENCE = 20_000
_SCALAR = ("SOP1", "SOP2", "SOPC", "SOPK")
_NOTHING = {
    "S_NOP", "S_WAITCNT", "S_DELAY_ALU", "S_CLAUSE", "S_WAITCNT_DEPCTR", "S_SLEEP", "S_SETPRIO", "S_SET_INST_PREFETCH_DISTANCE",
    "S_WAITCNT_VSCNT", "S_WAITCNT_VMCNT", "S_WAITCNT_EXPCNT", "S_WAITCNT_LGKMCNT", "S_SENDMSG", "S_ICACHE_INV", "S_WAIT_IDLE",
    "S_VERSION", "S_INCPERFLEVEL", "S_DECPERFLEVEL", "V_NOP", "V_PIPEFLUSH", "DS_NOP", "S_WAIT_EVENT",
}  # fmt: skip
_CONDITIONS: dict[str, Callable[[Waves], Array]] = {
    "S_CBRANCH_SCC0": lambda w: ~w.scc,
    "S_CBRANCH_SCC1": lambda w: w.scc,
    "S_CBRANCH_VCCZ": lambda w: w.mask(VCC) == 0,
    "S_CBRANCH_VCCNZ": lambda w: w.mask(VCC) != 0,
    "S_CBRANCH_EXECZ": lambda w: w.mask(EXEC) == 0,
    "S_CBRANCH_EXECNZ": lambda w: w.mask(EXEC) != 0,
}
_MODE = 1  # the hardware register with the modes of rounding and of subnormals


class EmulatorError(Exception):
    """A program did what it must not, or uses what the emulator lacks; the message says which instruction it was."""


@dataclass(slots=True)
class _Step:
    """One instruction, made ready. ``kind``: "plain", "branch", "jump", "end" or "barrier"."""

    ins: Instruction
    kind: str
    run: Callable[[Waves, Spaces], None] | None
    next: int
    target: int = 0
    condition: Callable[[Waves], Array] | None = None
    destination: Callable[[Waves], Array] | None = None


@dataclass(eq=False)
class Program:
    """Machine code at an address. Instructions are decoded and translated when they are first reached."""

    code: bytes
    address: int
    steps: dict[int, _Step] = field(default_factory=dict)

    def step(self, pc: int) -> _Step:
        found = self.steps.get(pc)
        if found is None:
            found = self.steps[pc] = self._make(pc)
        return found

    def _make(self, pc: int) -> _Step:
        if not 0 <= pc - self.address < len(self.code):
            raise EmulatorError(f"the program went to address {pc:#x}, where no code is")
        try:
            ins = decode(self.code, pc - self.address, pc)
        except Undecodable as error:
            raise EmulatorError(str(error)) from error
        try:
            return _step(ins)
        except Unsupported as error:
            raise EmulatorError(f"the emulator lacks `{ins}` (at {pc:#x}): {error}") from error


def _step(ins: Instruction) -> _Step:
    after = ins.address + ins.size
    name = ins.name
    if name == "S_ENDPGM":
        return _Step(ins, "end", None, after)
    if name == "S_BARRIER":
        return _Step(ins, "barrier", None, after)
    if name in _NOTHING or name.startswith(("BUFFER_GL", "S_DCACHE")):
        return _Step(ins, "plain", None, after)
    if ins.format == "SOPP" or name == "S_CALL_B64":
        jump = _jump(ins, after)
        if jump is not None:
            return jump
    if name in ("S_SETPC_B64", "S_SWAPPC_B64", "S_GETPC_B64"):
        return _program_counter(ins, after)
    if name.startswith("S_SETREG") or name in ("S_GETREG_B32", "S_ROUND_MODE", "S_DENORM_MODE"):
        return _Step(ins, "plain", _mode(ins), after)
    if name in across.STEPS:
        return _Step(ins, "plain", _registers(across.STEPS[name](ins)), after)
    if ins.format in _SCALAR:
        return _Step(ins, "plain", _registers(alu.scalar_step(ins)), after)
    if ins.format.startswith("VOP"):
        return _Step(ins, "plain", _registers(alu.vector_step(ins)), after)
    if ins.format in ("DS", "GLOBAL", "FLAT", "SCRATCH", "SMEM"):
        return _Step(ins, "plain", accesses.access(ins), after)
    raise Unsupported(f"instructions of format {ins.format}")


def _registers(step: Callable[[Waves], None]) -> Callable[[Waves, Spaces], None]:
    return lambda w, spaces: step(w)


def _jump(ins: Instruction, after: int) -> _Step | None:
    target = after + 4 * ((ins.fields["simm16"] ^ 0x8000) - 0x8000)
    if ins.name == "S_BRANCH":
        return _Step(ins, "branch", None, after, target)
    if ins.name == "S_CALL_B64":
        return _Step(ins, "branch", _registers(_keep_address(ins, after)), after, target)
    if ins.name in _CONDITIONS:
        return _Step(ins, "branch", None, after, target, _CONDITIONS[ins.name])
    if ins.name in ("S_ROUND_MODE", "S_DENORM_MODE"):
        return None
    raise Unsupported("a control instruction of this kind")


def _keep_address(ins: Instruction, after: int) -> Callable[[Waves], None]:
    store = write_scalar(ins.fields["sdst"], 64)
    return lambda w: store(w, np.full(len(w), after, np.uint64))


def _program_counter(ins: Instruction, after: int) -> _Step:
    if ins.name == "S_GETPC_B64":
        return _Step(ins, "plain", _registers(_keep_address(ins, after)), after)
    run = _registers(_keep_address(ins, after)) if ins.name == "S_SWAPPC_B64" else None
    return _Step(ins, "jump", run, after, destination=scalar(ins.fields["ssrc0"], 64))


def _mode(ins: Instruction) -> Callable[[Waves, Spaces], None]:
    """Writes that keep to rounding to nearest, with subnormals, change nothing; others are not emulated."""
    control = ins.fields["simm16"]
    if ins.name == "S_ROUND_MODE" and control & 15 == 0:
        return lambda w, spaces: None
    if ins.name == "S_DENORM_MODE" and control & 15 == 15:
        return lambda w, spaces: None
    register, offset, size = control & 63, control >> 6 & 31, (control >> 11) + 1
    if ins.name == "S_SETREG_IMM32_B32" and register == _MODE and offset + size <= 8:
        kept = 0xF0 >> offset & (1 << size) - 1
        if ins.literal == kept:
            return lambda w, spaces: None
    raise Unsupported("another mode of rounding or of subnormals than that of the kernel descriptor")


@dataclass(eq=False)
class Dispatch:
    """Waves of workgroups under way. ``trace``: called with each instruction and the waves that run it."""

    program: Program
    spaces: Spaces
    waves_per_group: int
    trace: Callable[[Instruction, Waves], None] | None = None
    instructions: int = 0

    def run(self, waves: Waves) -> None:
        """Raises EmulatorError."""
        ready = [waves]
        waiting: list[Waves] = []  # at a barrier
        with np.errstate(all="ignore"):
            while ready or waiting:
                if not ready:
                    ready, waiting = self._pass_barrier(waiting), []
                if all(w.resting for w in ready):
                    for w in ready:
                        w.resting = False
                pc = min(w.pc for w in ready if not w.resting)
                level = [w for w in ready if w.pc == pc]
                ready = [w for w in ready if w.pc != pc]
                self._until_met(Waves.together(level), ready, waiting)

    def _pass_barrier(self, waiting: list[Waves]) -> list[Waves]:
        """All waves that are left wait: every workgroup must have all of its waves at one barrier."""
        for one in waiting:
            numbers, counts = np.unique(one.group, return_counts=True)
            short = counts != self.waves_per_group
            if short.any():
                k = int(np.flatnonzero(short)[0])
                raise EmulatorError(
                    f"only {counts[k]} of {self.waves_per_group} waves of workgroup {numbers[k]} reached the barrier at {one.pc:#x}"
                )
            one.pc += 4
        return waiting

    def _until_met(self, w: Waves, ready: list[Waves], waiting: list[Waves]) -> None:
        """Run ``w`` until it ends, waits, meets waves that are ready, or passes them; what is left goes to ``ready`` or ``waiting``."""
        steps, program, spaces = self.program.steps, self.program, self.spaces
        patience = _PATIENCE
        places = {other.pc for other in ready}
        limit = min((other.pc for other in ready if not other.resting), default=1 << 64)
        while True:
            step = steps.get(w.pc) or program.step(w.pc)
            self.instructions += 1
            if self.trace is not None:
                self.trace(step.ins, w)
            if step.run is not None:
                self._do(step, w, spaces)
            if step.kind == "plain":
                w.pc = step.next
            elif step.kind == "branch":
                other = self._branch(step, w)
                if other is not None:
                    ready += [w, other]
                    return
            else:
                self._leave(step, w, ready, waiting)
                return
            if places:
                patience -= 1
                w.resting = patience == 0
                if w.pc in places or w.pc > limit or w.resting:
                    ready.append(w)
                    return

    def _do(self, step: _Step, w: Waves, spaces: Spaces) -> None:
        assert step.run is not None
        try:
            step.run(w, spaces)
        except LaneFault as error:
            lane = f", lane {error.lane}" if error.lane >= 0 else ""
            raise EmulatorError(f"wave {error.wave}{lane}, `{step.ins}` at {w.pc:#x}: {error}") from error
        except Unsupported as error:
            raise EmulatorError(f"the emulator lacks `{step.ins}` (at {w.pc:#x}): {error}") from error

    def _leave(self, step: _Step, w: Waves, ready: list[Waves], waiting: list[Waves]) -> None:
        """The end, a barrier, or a jump to an address in registers."""
        if step.kind == "barrier":
            same = [one for one in waiting if one.pc == w.pc]
            for one in same:
                waiting.remove(one)
            waiting.append(Waves.together([*same, w]))
        elif step.kind == "jump":
            ready += self._jumps(step, w)

    def _branch(self, step: _Step, w: Waves) -> Waves | None:
        """Move ``w`` to where it goes; returns the waves that go elsewhere."""
        taken = np.ones(1, np.bool_) if step.condition is None else step.condition(w)
        if taken.all():
            w.pc = step.target
            return None
        if not taken.any():
            w.pc = step.next
            return None
        other = w.part(taken)
        other.pc = step.target
        w.keep(~taken)
        w.pc = step.next
        return other

    def _jumps(self, step: _Step, w: Waves) -> list[Waves]:
        assert step.destination is not None
        targets = np.broadcast_to(step.destination(w), (len(w),))
        sets = []
        for target in np.unique(targets):
            part = w.part(targets == target)
            part.pc = int(target)
            sets.append(part)
        return sets
