"""What interactive prompts complete, which ask the objects: attributes that are passed on to other objects are among those listed."""

import spirograd as sg


def test_attributes_are_listed() -> None:
    sg.init(arch=sg.interpreter)
    point = sg.types.struct(mass=sg.f32, at=sg.types.struct(height=sg.f32), __struct_methods={"weight": lambda self: self.mass})

    @sg.data_oriented
    class Solver:
        @sg.kernel
        def step(self) -> None:
            pass

    step = Solver().step
    assert {"grad", "instance", "ir", "spirv_asm", "llvm", "asm", "stages", "step", "__call__"} <= set(dir(step))
    assert {"explain", "memory_plan", "adstack_bytes", "ir", "stages", "instance"} <= set(dir(step.grad))
    assert {"mass", "at", "weight", "to_dict"} <= set(dir(point(mass=1.0)))
    assert {"mass", "at", "grad", "fill"} <= set(dir(point.field(shape=2)))
    assert {"arch", "debug", "random_seed"} <= set(dir(sg.cfg))
    sg.reset()
    assert dir(sg.cfg) == []
