"""Programs as Python files: ``python FILE cpu`` runs one as a user would.

The file has two parts, so that programs with the same kernels share what is compiled: memory and kernels, then `main`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .nodes import (
    ALL,
    AtOnce,
    Call,
    Clear,
    Const,
    Copy,
    Data,
    Fill,
    For,
    Forward,
    Function,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    Look,
    Memory,
    Name,
    Nested,
    Op,
    Over,
    Param,
    Part,
    Program,
    Put,
    Read,
    Repeat,
    Replaced,
    Second,
    Store,
    Tape,
    Transfer,
    When,
    While,
    walk,
)

OPERATIONS = {
    "+": "({} + {})", "-": "({} - {})", "*": "({} * {})", "neg": "(-{})", "square": "({}) ** 2", "root": "sg.sqrt(1.0 + {0} * {0})",
    "sin": "sg.sin({})", "cos": "sg.cos({})", "tanh": "sg.tanh({})", "max": "sg.max({}, {})", "float": "sg.cast({}, real)",
    "//": "({} // {})", "%": "({} % {})", "<": "{} < {}", "<=": "{} <= {}", ">": "{} > {}", "==": "{} == {}", "!=": "{} != {}",
    "and": "{} and {}", "or": "({} or {})", "not": "not ({})", "if": "({1} if {0} else {2})",
    "dot": "{}.dot({})", "norm": "{}.norm_sqr()", "times": "({} @ {})",
}  # fmt: skip

PRELUDE = """{title}
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import spirograd as sg

real = sg.{type}
if __name__ == "__main__":
    sg.init(arch=getattr(sg, sys.argv[1] if len(sys.argv) > 1 else "cpu"), default_fp=real{options})
seen = []


def floats(seed, *shape):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(real.np)


def small(seed, *shape):
    return np.random.default_rng(seed).integers(0, 4, shape).astype(np.int32)


def permutation(seed, n):
    return np.random.default_rng(seed).permutation(n).astype(np.int32)


def in_threads(*functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        for done in [pool.submit(function) for function in functions]:
            done.result()


def array(memory):
    if isinstance(memory, np.ndarray):
        return memory.copy()
    return memory.to_numpy() if hasattr(memory, "to_numpy") else memory.detach().numpy().copy()


def look():
    for name, memory in sorted(MEMORY.items()):
        seen.append((name, array(memory)))
        if name in GRADIENTS:
            seen.append((name + ".grad", np.zeros(memory.shape) if memory.grad is None else array(memory.grad)))


"""
END = """

if __name__ == "__main__":
    main()
    for name, numbers in seen:
        print(name, numbers)
"""


def source(program: Program) -> str:
    """The whole file."""
    return head(program) + main(program) + END


def head(program: Program) -> str:
    """Memory, functions and kernels."""
    title = '"""' + ", ".join(program.cell) + '."""'
    options = "".join(f", {name}={value!r}" for name, value in program.options)
    text = PRELUDE.format(title=title, type=program.type, options=options)
    return text + "\n".join(
        [
            *_memories(program),
            *map(_function, program.functions),
            *[_kernel(k, program) for k in program.kernels],
            *map(_pull, program.pulls),
            "",
        ]
    )


def main(program: Program) -> str:
    writer = _Main(program)
    lines = ["def main():", *_indented(map(_start, program.memories))]
    tensors = [m.name for m in program.memories if m.place == "torch"]
    lines += [f"    {name}.grad = None" if name in tensors else f"    {name}.grad.fill(0.0)" for name in _gradients(program)]
    if any(getattr(node, "by", "") == "torch" for node in walk(program.main)):
        lines.insert(1, "    import torch\n")
    return "\n".join([*lines, *_indented(writer.block(program.main)), ""])


def _gradients(program: Program) -> list[str]:
    return [m.name for m in program.memories if m.grad and m.values == "floats" and not m.name.startswith("pad")]


def _start(m: Memory) -> str:
    """The first contents."""
    data = _data(m, m.seed)
    if m.place == "torch":
        return f"{m.name}.data[:] = torch.from_numpy({data})"
    return f"{m.name}[:] = {data}" if m.place == "numpy" else f"{m.name}.from_numpy({data})"


# --- memory ------------------------------------------------------------------------------------------------------------------------


def _type(memory: Memory) -> str:
    if memory.values != "floats":
        return "sg.i32"
    return {
        "struct": "Body",
        "scalar": "real",
        "vector": f"sg.types.vector({memory.width}, real)",
        "matrix": "sg.types.matrix(2, 2, real)",
    }[memory.kind]


def _memories(program: Program) -> list[str]:
    lines = []
    if any(m.kind == "struct" for m in program.memories):
        lines.append("Body = sg.types.struct(a=real, b=sg.types.vector(2, real))")
    together: dict[tuple[int, ...], list[str]] = {}
    for m in program.memories:
        lines += _memory(m, program.duals)
        if m.layout == "together":
            together.setdefault(m.shape, []).extend(_placed(m, program.duals))
    for shape, names in together.items():
        axes = "i" if len(shape) == 1 else "ij"
        lines.append(f"sg.root.dense(sg.{axes}, {shape}).place({', '.join(names)})")
    names = ", ".join(f"{m.name!r}: {m.name}" for m in program.memories if not m.name.startswith("pad"))
    return [*lines, f"MEMORY = {{{names}}}", f"GRADIENTS = {_gradients(program)!r}", ""]


def _memory(m: Memory, duals: bool) -> list[str]:
    """What makes a field or an array, and places it, but for those that are placed together."""
    if m.place == "torch":
        return ["import torch", f"{m.name} = torch.from_numpy(np.zeros({m.shape}, real.np)).requires_grad_()"]
    if m.place == "numpy":
        return [f"{m.name} = np.zeros({m.shape}, real.np)"]
    maker, values = {
        "scalar": ("sg.field", [_type(m)]),
        "vector": ("sg.Vector.field", [f"{m.width}, real"]),
        "matrix": ("sg.Matrix.field", ["2, 2, real"]),
        "struct": ("Body.field", []),
    }[m.kind]
    by_hand = m.layout in ("root", "blocks", "together")
    if not by_hand:
        values.append(f"shape={m.shape}")
    if m.layout == "soa":
        values.append("layout=sg.Layout.SOA")
    if m.layout == "order":
        values.append(f"order={'ji' if len(m.shape) == 2 else 'i'!r}")
    if m.grad and m.values == "floats":
        values += ["needs_grad=True", *["needs_dual=True"] * duals]
    if m.place == "array":
        maker = maker.replace("field", "ndarray")
    lines = [f"{m.name} = {maker}({', '.join(values)})"]
    axes = "i" if len(m.shape) == 1 else "ij"
    if m.layout == "root":
        lines += [f"sg.root.dense(sg.{axes}, {m.shape}).place({name})" for name in _placed(m, duals)]
    if m.layout == "blocks":
        outer = (m.shape[0] // 2, *m.shape[1:])
        lines.append(f"sg.root.dense(sg.{axes}, {outer}).dense(sg.i, 2).place({', '.join(_placed(m, duals))})")
    return lines


def _placed(m: Memory, duals: bool) -> list[str]:
    """What is placed by hand."""
    shadowed = m.grad and m.values == "floats"
    return [m.name, *[f"{m.name}.grad"] * shadowed, *[f"{m.name}.dual"] * (shadowed and duals)]


def _data(m: Memory, seed: int) -> str:
    shape = ", ".join(map(str, m.shape))
    if m.values != "floats":
        return f"{m.values}({seed}{', ' if shape else ''}{shape})"
    if m.kind == "struct":
        return f"{{'a': floats({seed}, {shape}), 'b': floats({seed + 1}, {shape}, 2)}}"
    return f"floats({', '.join(map(str, (seed, *m.shape, *m.element_shape)))})"


# --- kernels -----------------------------------------------------------------------------------------------------------------------


def _indented(lines: Iterable[str]) -> list[str]:
    return ["    " + line for line in lines]


def expression(e: Any) -> str:
    if isinstance(e, Const):
        return repr(e.value)
    if isinstance(e, Name):
        return e.name
    if isinstance(e, Load):
        return _element(e.memory, e.index, e.component)
    if isinstance(e, Call):
        return f"{e.function}({', '.join(map(expression, e.args))})"
    assert isinstance(e, Op)
    if e.op == "vector":
        return f"sg.Vector([{', '.join(map(expression, e.args))}])"
    return OPERATIONS[e.op].format(*map(expression, e.args))


def _element(memory: str, index: tuple[Any, ...], component: Any) -> str:
    text = f"{memory}[{', '.join(map(expression, index)) or 'None'}]"
    return text + _component(component)


def _component(component: Any) -> str:
    if component is None or component == ALL:
        return ""
    if isinstance(component, int):
        return f"[{component}]"
    if isinstance(component[0], str):
        return f".{component[0]}" + ("" if component[1] is None else f"[{component[1]}]")
    return f"[{component[0]}, {component[1]}]"


def _function(f: Function) -> str:
    lines = [*_block(f.body), f"return {expression(f.result)}"]
    return "\n".join(["", "@sg.func", f"def {f.name}({', '.join(f.params)}):", *_indented(lines), ""])


def _kernel(kernel: Kernel, program: Program) -> str:
    params = ", ".join(f"{p.name}: {_annotation(p, program)}" for p in kernel.params)
    return "\n".join(["", "@sg.kernel", f"def {kernel.name}({params}):", *_indented(_block(kernel.body)), ""])


def _pull(pull: tuple[str, str, int]) -> str:
    """The gradient that `Replaced` gives."""
    x, y, n = pull
    body = [f"{x}.grad[i] += factor * sg.cos({x}[i]) * {y}.grad[i]", f"{y}.grad[i] = 0.0"]
    return "\n".join(["", "@sg.kernel", f"def pull_{y}(factor: real):", f"    for i in range({n}):", *_indented(_indented(body)), ""])


def _annotation(p: Param, program: Program) -> str:
    if p.kind != "memory":
        return {"float": "real", "int": "sg.i32"}[p.kind]
    m = program.memory(p.like)
    return "sg.Template" if m.place == "field" else f"sg.types.NDArray[{_type(m)}, {len(m.shape)}]"


def _block(body: tuple[Any, ...]) -> list[str]:
    return [line for statement in body for line in _statement(statement)] or ["pass"]


def _statement(s: Any) -> list[str]:
    if isinstance(s, Let):
        return [f"{s.name} = {expression(s.value)}"]
    if isinstance(s, Store):
        return [f"{_element(s.memory, s.index, s.component)} {s.op} {expression(s.value)}"]
    if isinstance(s, If):
        orelse = ["else:", *_indented(_block(s.orelse))] if s.orelse else []
        return [f"if {expression(s.condition)}:", *_indented(_block(s.body)), *orelse]
    if isinstance(s, For):
        return [f"for {s.name} in range({expression(s.bound)}):", *_indented(_block(s.body))]
    if isinstance(s, Over):
        return [f"for {', '.join(s.names)} in {s.memory}:", *_indented(_block(s.body))]
    assert isinstance(s, While)
    if s.bound is None:
        return [*[f"{s.name} = 0"] * bool(s.name), "while False:", *_indented(_block(s.body))]
    end = [f"if {expression(s.until)}:", "    break"] if s.until is not None else []
    inner = [f"{s.name} += 1", *_block(s.body), *end]
    return [f"{s.name} = 0", f"while {s.name} < {expression(s.bound)}:", *_indented(inner)]


# --- Python ------------------------------------------------------------------------------------------------------------------------


class _Main:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers = 0

    def fresh(self, name: str) -> str:
        self.numbers += 1
        return f"{name}{self.numbers}"

    def block(self, body: tuple[Any, ...]) -> list[str]:
        return [line for statement in body for line in getattr(self, type(statement).__name__.lower())(statement)] or ["pass"]

    def part(self, part: Part) -> str:
        if part.cut is None:
            return part.memory
        start, stop, step = part.cut
        return f"{part.memory}[{start}:{stop}{'' if step == 1 else f':{step}'}]"

    def argument(self, a: Any) -> str:
        return self.part(a) if isinstance(a, Part) else expression(a)

    def launch(self, s: Launch) -> list[str]:
        return [f"{s.kernel}({', '.join(map(self.argument, s.args))})"]

    def repeat(self, s: Repeat) -> list[str]:
        return [f"for {s.name} in range({s.count}):", *_indented(self.block(s.body))]

    def when(self, s: When) -> list[str]:
        orelse = ["else:", *_indented(self.block(s.orelse))] if s.orelse else []
        return [f"if {expression(s.condition)}:", *_indented(self.block(s.body)), *orelse]

    def fill(self, s: Fill) -> list[str]:
        target = self.part(s.part)
        if s.component not in (None, ALL):
            target += f".get_scalar_field({s.component})" if isinstance(s.component, int) else f".{s.component[0]}"
        return [f"{target}.fill({expression(s.value)})"]

    def copy(self, s: Copy) -> list[str]:
        return [f"{self.part(s.target)}.copy_from({self.part(s.source)})"]

    def put(self, s: Put) -> list[str]:
        return [f"{_element(s.memory, tuple(map(Const, s.index)), s.component)} = {expression(s.value)}"]

    def read(self, s: Read) -> list[str]:
        return [f"{s.name} = {_element(s.memory, tuple(map(Const, s.index)), s.component)}"]

    def data(self, s: Data) -> list[str]:
        text = _data(self.program.memory(s.memory), s.seed)
        return [f"{s.memory}.from_numpy({text})" if s.by == "numpy" else f"{s.memory}.from_torch(torch.from_numpy({text}))"]

    def transfer(self, s: Transfer) -> list[str]:
        return [f"{s.target}.from_{s.by}({s.factor} * {s.source}.to_{s.by}())"]

    def nested(self, s: Nested) -> list[str]:
        call = f"sg.ad.checkpoint({s.name})" if s.checkpoint else f"{s.name}()"
        return [f"def {s.name}():", *_indented(self.block(s.body)), call]

    def replaced(self, s: Replaced) -> list[str]:
        name = self.fresh("replaced")
        launch = self.launch(s.launch)
        gradient = [launch[0].replace("(", ".grad(", 1)] if s.factor is None else [f"pull_{s.target}({s.factor})"]
        return [
            "@sg.ad.grad_replaced", f"def {name}():", *_indented(launch),
            f"@sg.ad.grad_for({name})", f"def {name}_grad():", *_indented(gradient), f"{name}()",
        ]  # fmt: skip

    def tape(self, s: Tape) -> list[str]:
        name = self.fresh("tape")
        options = ", ".join([s.loss] * bool(s.loss) + [f"{key}={value}" for key, value in s.options])
        lines = [f"with sg.ad.Tape({options}) as {name}:", *_indented(self.block(s.body))]
        for _ in range(s.times if s.seeds else 0):
            lines.append("sg.ad.clear_all_gradients()")
            lines += [f"{m}.grad.from_numpy({_data(self.program.memory(m), seed)})" for m, seed in s.seeds]
            lines.append(f"{name}.grad()")
        if s.thread:
            lines = [f"def run_{name}():", *_indented(lines), f"in_threads(run_{name})"]
        if s.graph:
            again = _data(self.program.memory(s.again), 77)
            lines = ["with sg.Graph() as graph:", *_indented(lines), "look()", f"{s.again}.from_numpy({again})", "graph.launch()"]
        return lines

    def atonce(self, s: AtOnce) -> list[str]:
        names = [self.fresh("episode") for _ in s.body]
        lines = [line for name, tape in zip(names, s.body) for line in (f"def {name}():", *_indented(self.tape(tape)))]
        return [*lines, f"in_threads({', '.join(names)})"]

    def second(self, s: Second) -> list[str]:
        name = self.fresh("function")
        direction = _data(self.program.memory(s.x), s.seed)
        call = f"sg.ad.hvp({name}, {s.loss}, {s.x}, {direction})"
        return [f"def {name}():", *_indented([f"{s.loss}.fill(0.0)", *self.block(s.body)]), f"seen.append(('second', {call}))"]

    def forward(self, s: Forward) -> list[str]:
        seed = _data(self.program.memory(s.x), s.seed)
        lines = [f"with sg.ad.FwdMode(loss={s.result}, param={s.x}, seed={seed}):", *_indented(self.block(s.body))]
        return [*lines, f"seen.append(('forward', {s.result}.dual.to_numpy()))"]

    def clear(self, s: Clear) -> list[str]:
        return ["sg.ad.clear_all_gradients()"]

    def look(self, s: Look) -> list[str]:
        return ["look()"]
