"""Public programs of the Taichi family, by repository, with what each needs to run a few frames without a display.

Nothing of them is part of this project: `python -m validation.clients` takes a folder of checkouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from validation.family.programs import Program


@dataclass(frozen=True, slots=True)
class Client:
    """One way to run a script of the checkout in folder ``repository`` (the name on GitHub, without the owner).

    ``arguments`` are its command line; ``frame``, ``deliberate`` and ``volume`` are those of `Program`.
    """

    job: str
    repository: str
    script: str
    arguments: str = ""
    frame: str = ""
    deliberate: tuple[str, ...] = ()
    volume: str = ""


# After a tape the gradient of the loss is 1, and the gradient of memory that Python overwrites under the tape is that of its old value: 0.
_LOSS, _OVERWRITTEN = "000 line*.grad", "004 line*.grad"
# What a custom gradient writes to memory by launches is undone at its end: the grid is that of the last step, in Taichi that of the first.
_GRID = ("004 line 30", "005 line 29", "006 line 30", "009 line 29.grad", "012 line 30.grad")
# A kernel reads positions that a later one overwrites. The gradient of Taichi takes the new ones: for four weights, in f64, it is 3 to 18
# times the finite differences, partly with the other sign; ours agrees with them to 2e-7. The weights then diverge, so no field is judged.
_WRONG_THERE = "*"

# Near a multiple of the identity, Taichi's SVD of a 2 x 2 matrix drops small entries and is off by up to 1e-5, in f64 too; ours is exact to
# 1e-15. The program compares a product of singular values with 1, so that sand yields at other places.
_INEXACT_SVD = ("004 line*", "005 line*", "007 line*", "008 line*", "009 line*")
# Each particle reads positions of neighbours that their iterations overwrite, so the result depends on the order of iterations.
_RACING = ("004 line*", "005 line*")

CLIENTS = (
    Client("differentiable MPM", "difftaichi", "examples/diffmpm.py", "--iters 20", "tape", _GRID),
    Client("differentiable MPM, one velocity learnt", "difftaichi", "examples/diffmpm_simple.py", "", "tape"),
    Client("differentiable MPM of a body", "difftaichi", "examples/diffmpm_checkpointing.py", "", "tape"),
    Client("differentiable MPM, 3-D", "difftaichi", "examples/diffmpm3d.py", "--iters 20", "printed:i="),
    Client("differentiable liquid, 3-D", "difftaichi", "examples/liquid.py", "", "printed:i="),
    Client("springs, rest lengths learnt", "difftaichi", "examples/mass_spring_simple.py", "", "tape", (_LOSS,)),
    Client("mass-spring robot that follows", "difftaichi", "examples/mass_spring_interactive.py", "1 --iters 20", "tape"),
    Client("mass-spring robot, learnt", "difftaichi", "examples/mass_spring.py", "1 train --iters 20", "tape", (_LOSS, _OVERWRITTEN)),
    Client("differentiable electric field", "difftaichi", "examples/electric.py", "", "tape", (_WRONG_THERE,)),
    Client("differentiable wave equation", "difftaichi", "examples/wave.py", "--iters 20", "tape"),
    Client("differentiable smoke", "difftaichi", "examples/smoke_taichi_cpu.py", "--iters 20", "tape"),
    Client("differentiable smoke, for GPUs", "difftaichi", "examples/smoke_taichi_gpu.py", "--iters 20", "tape"),
    Client("differentiable smoke, semi-Lagrangian", "difftaichi", "examples/smoke_taichi.py", "--iters 20", "tape"),
    Client("differentiable water renderer", "difftaichi", "examples/water_renderer.py", "", "tape"),
    Client("differentiable volume renderer", "difftaichi", "examples/volume_renderer.py", "", "tape", volume="bunny_128.bin"),
    Client("billiards, aimed by gradients", "difftaichi", "examples/billiards.py", "", "tape", (_LOSS, "003 line*.grad")),
    Client("rigid bodies, learnt", "difftaichi", "examples/rigid_body.py", "1 train", "tape"),
    Client("SPH: weakly compressible", "SPH_Taichi", "run_simulation.py", "--scene_file data/scenes/high_fluid_wcsph.json"),
    Client("SPH: divergence free", "SPH_Taichi", "run_simulation.py", "--scene_file data/scenes/high_fluid_dfsph.json"),
    Client("MPM with a sparse grid, 2-D", "taichi_elements", "demo/demo_2d.py"),
    Client("MPM with a sparse grid, 3-D", "taichi_elements", "demo/demo_3d.py"),
    Client("lattice Boltzmann, 2-D", "LBM_Taichi", "lbm_solver.py"),
    Client(
        "lattice Boltzmann, 3-D",
        "taichi_LBM3D",
        "Single_phase/example_cavity.py",
        frame="LBM_3D_SinglePhase_Solver:LB3D_Solver_Single_Phase.step",
    ),
    Client("voxel renderer", "voxel-challenge", "main.py"),
    Client("voxel renderer, a larger scene", "voxel-challenge", "example1.py"),
    Client("physically based ray marcher", "RayTracingPBR", "examples/cornell_box/cornell_box_v2.py"),
    Client("ray marcher of a distance field with glass", "RayTracingPBR", "examples/bunny/bunny_sdf_glass.py"),
    Client("path tracer", "AdaPT", "render.py", "--arch cpu --type pt --scene cbox --name complex.xml"),
    Client("bidirectional path tracer", "AdaPT", "render.py", "--arch cpu --type bdpt --scene cbox --name complex.xml"),
    Client("position based dynamics", "tiPBD", "tiPBD.py"),
    Client("mass-spring system", "games201", "mass_spring_explicit.py"),
    Client("cloth, implicit", "cloth_simulation", "basic/taichi_implicit.py"),
    Client("cloth with a ball", "OpenClothPy", "cloth.py", deliberate=_RACING),
    Client("game of MPM", "taichi_tetris", "tetris.py"),
    Client("MPM with cutting", "MLS_MPM_CPIC", "mpm_cutting_thin.py"),
    Client("MPM of sand", "pyasflip", "pyasflip.py", deliberate=_INEXACT_SVD),
    Client("grains: discrete elements", "taichi_dem_and_pbd_sand", "sim.py"),
    Client("dendrite growth on a sparse grid", "Snow-Dendrite-Growth", "dendrite_hierachical.py"),
    Client("crystal growth", "crystal_growth-homework4", "crystal_growth.py"),
    Client("reaction and diffusion", "faster-python-with-taichi", "reaction_diffusion_taichi.py"),
    Client("fluid with penalties", "FastIPC", "projects/PenaltyFluid/JBased.py"),
    Client("ray tracer", "taichi_ray_tracing", "2_0_lambertian_reflection.py"),
    Client("ray marcher of a course", "My-Taichi-Practice", "CourseCodes/RayMarching.py"),
    Client("continuous cellular automaton", "Taichi_Lenia", "Lenia-taichi.py"),
    Client("advection schemes", "taichi_harmonic", "advection.py"),
    Client("robot that plays table tennis", "taichi_table_tennis", "main.py"),
    Client("electromagnetic waves, 1-D", "uFDTD-Taichi", "ufdtd_taichi/ch03/1d_additive.py"),
    Client("cloth in the wind", "tiCloth", "Source/Main_01.py"),
    Client("multigrid-preconditioned conjugate gradients", "MGPCG_Taichi", "mgpcg_2D.py"),
    Client("position based cloth, 2-D", "PBD_Cloth_Taichi", "PBD_ClothFall_2D.py"),
    Client("springs, implicit", "Taichi-Physical-Simulation", "0_mass_spring/implicit_mass_spring.py"),
    Client("chain of rigid bodies", "Taichi-Simulations", "multibody.py"),
    Client("springs, implicit by Gauss-Seidel", "Taichi-solver", "linear_solver/implicit-gauss-seidel.py"),
    Client("diffusion of heat", "Taichi-Projects", "Lab6 Temperature-diffuse/PythonApplication/PythonApplication.py"),
    Client("layer of a recurrent network, with its gradient", "unicornn_Taichi", "unicornn_taichi.py"),
    Client("particles that a potential moves, by its gradient", "test_taichi_diff", "diff.py"),
    Client("elastic triangles, neo-Hookean, position based", "neohookean_XPBD", "neohookean_xpbd.py"),
    Client("diffraction of light", "taichicourse", "main.py"),
    Client("rope of springs", "taichi_learn", "games101hw8/games101hw8.py"),
    Client("springs, explicit", "LearnGAMES201", "GAMES201/P2/Scripts/mass_spring_explicit.py"),
    Client("two fluids by fractions of volume, 2-D", "taichi-2d-vof", "2dvof.py"),
    Client("animation of a course", "taichiCourse01_HW5", "stg.py"),
    Client("cloth of springs, 3-D", "mass-spring", "mass_spring_3d_ggui.py"),
    Client("grains, aimed by gradients", "ad-experiment", "diff-dem.py", deliberate=("001 line*.grad",)),  # of the loss
    Client("grains of a tutorial", "taichi_dem_tutorial", "answer/dem-step-4a.py"),
    Client("MPM in 88 lines", "taichi_houdini", "Libs/python/mpm88.py"),
)


def programs(checkouts: Path) -> Iterator[Program]:
    """Yield the programs whose checkout lies in the folder ``checkouts``."""
    for client in CLIENTS:
        folder = checkouts / client.repository
        if (folder / client.script).is_file():
            name = f"{client.repository}: {client.job}"
            yield Program(
                name, folder, folder / client.script, tuple(client.arguments.split()), client.frame, True, client.deliberate, client.volume
            )
