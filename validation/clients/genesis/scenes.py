"""Scenes of Genesis. Each adds its entities to a scene and returns what is stepped and what is looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Scene:
    """``add(gs, scene)`` gives the entities; ``look(entities)`` the arrays to compare, by name; ``before_step(entities, k)`` moves things.

    ``options``: of `gs.Scene`, made when Genesis is there. ``steps``: after which results are compared. ``precision``: if the scene needs
    one. ``differentiate(gs, scene, entities)``: runs the scene from its start and gives gradients, which are compared instead; it is what
    is timed.
    """

    add: Callable[[Any, Any], list[Any]]
    look: Callable[[list[Any]], dict[str, Any]]
    options: Callable[[Any], dict[str, Any]] = field(default=lambda gs: {})
    before_step: Callable[[list[Any], int], None] = field(default=lambda entities, k: None)
    environments: int = 0
    steps: int = 20
    precision: str = ""
    differentiate: Callable[[Any, Any, list[Any]], dict[str, Any]] | None = None


def _bodies(entities: list[Any]) -> dict[str, Any]:
    """Positions and velocities of all joints of all rigid bodies but the ground."""
    found = {}
    for k, entity in enumerate(entities):
        found[f"body {k} position"] = entity.get_qpos()
        found[f"body {k} velocity"] = entity.get_dofs_velocity()
    return found


def _particles(entities: list[Any]) -> dict[str, Any]:
    return {f"particles {k}": entity.get_particles_pos() for k, entity in enumerate(entities)}


def _vertices(entities: list[Any]) -> dict[str, Any]:
    return {f"vertices {k}": entity.get_state().pos for k, entity in enumerate(entities)}


def _box(gs: Any, scene: Any) -> list[Any]:
    scene.add_entity(gs.morphs.Plane())
    return [scene.add_entity(gs.morphs.Box(size=(0.2, 0.2, 0.2), pos=(0, 0, 0.15)))]


def _stack(gs: Any, scene: Any) -> list[Any]:
    scene.add_entity(gs.morphs.Plane())
    return [scene.add_entity(gs.morphs.Box(size=(0.2, 0.2, 0.2), pos=(0, 0, 0.1 + 0.201 * k))) for k in range(3)]


def _file(kind: str, path: str, **options: Any) -> Callable[[Any, Any], list[Any]]:
    """A body that a file of Genesis' assets describes, on the ground."""

    def add(gs: Any, scene: Any) -> list[Any]:
        scene.add_entity(gs.morphs.Plane())
        return [scene.add_entity(getattr(gs.morphs, kind)(file=path, **options))]

    return add


def _reach(entities: list[Any], step: int) -> None:
    """The arm's joints follow the inverse kinematics of a point."""
    arm = entities[0]
    if step == 0:
        hand = arm.get_link("hand")
        target = arm.inverse_kinematics(link=hand, pos=[0.5, 0.1, 0.5], quat=[0, 1, 0, 0])
        arm.control_dofs_position(target)


def _terrain(gs: Any, scene: Any) -> list[Any]:
    scene.add_entity(gs.morphs.Terrain(n_subterrains=(1, 1), subterrain_size=(4.0, 4.0), subterrain_types="sloped_terrain"))
    return [scene.add_entity(gs.morphs.Sphere(radius=0.1, pos=(2.0, 2.0, 1.0)))]


def _of_matter(material: Callable[[Any], Any], size: float, height: float, ground: bool = True) -> Callable[[Any, Any], list[Any]]:
    """A box of this material above the ground, which is a body of the scene or (``ground`` is False) the solver's own."""

    def add(gs: Any, scene: Any) -> list[Any]:
        if ground:
            scene.add_entity(gs.morphs.Plane())
        return [scene.add_entity(material=material(gs), morph=gs.morphs.Box(pos=(0.0, 0.0, height), size=(size, size, size)))]

    return add


def _elastic(gs: Any) -> Any:
    return gs.materials.FEM.Elastic(E=1e5, nu=0.4, rho=1000.0, model="linear_corotated")


def _bounded(name: str, substeps: int, requires_grad: bool = False, **options: Any) -> Callable[[Any], dict[str, Any]]:
    """Options of a scene with the particles of one solver, inside a box. The ``substeps`` keep the motion stable."""

    def make(gs: Any) -> dict[str, Any]:
        corners = {"lower_bound": (-0.5, -0.5, 0.0), "upper_bound": (0.5, 0.5, 1.0)}
        return {
            "sim_options": gs.options.SimOptions(dt=4e-3, substeps=substeps, requires_grad=requires_grad),
            f"{name.lower()}_options": getattr(gs.options, f"{name}Options")(**corners, **options),
        }

    return make


def _implicit(gs: Any) -> dict[str, Any]:
    return {
        "sim_options": gs.options.SimOptions(dt=1e-2, substeps=1),
        "fem_options": gs.options.FEMOptions(use_implicit_solver=True),
        "coupler_options": gs.options.SAPCouplerOptions(),
    }


def _differentiable(gs: Any) -> dict[str, Any]:
    return {"sim_options": gs.options.SimOptions(dt=1e-2, requires_grad=True)}


_AIM = (0.2, 0.1, 0.2)  # the point whose distance is differentiated


def _by_velocity(steps: int) -> Callable[[Any, Any, list[Any]], dict[str, Any]]:
    """How the squared distance of a body of particles from a point depends on the velocity that it starts with."""

    def differentiate(gs: Any, scene: Any, entities: list[Any]) -> dict[str, Any]:
        import torch

        scene.reset()
        velocity = torch.tensor([0.3, 0.0, -1.0], dtype=gs.tc_float, device=gs.device, requires_grad=True)
        entities[0].set_velocity(velocity)
        for _ in range(steps):
            scene.step()
        end = entities[0].get_state().pos
        ((end - torch.tensor(_AIM, device=gs.device)) ** 2).mean().backward()
        return {"end": end.detach(), "gradient by velocity": velocity.grad}

    return differentiate


def _by_joints(steps: int) -> Callable[[Any, Any, list[Any]], dict[str, Any]]:
    """The same of a rigid body."""

    def differentiate(gs: Any, scene: Any, entities: list[Any]) -> dict[str, Any]:
        import torch

        scene.reset()
        velocity = torch.tensor([0.3, 0.0, -1.0, 0.1, 0.2, 0.3], dtype=gs.tc_float, device=gs.device, requires_grad=True)
        entities[0].set_dofs_velocity(velocity)
        for _ in range(steps):
            scene.step()
        end = entities[0].get_state().pos
        ((end - torch.tensor(_AIM, device=gs.device)) ** 2).sum().backward()
        return {"end": end.detach(), "gradient by velocity": velocity.grad}

    return differentiate


def _hold(entities: list[Any], step: int) -> None:
    """The arm's joints go to a pose that is not the one of the start."""
    entities[0].control_dofs_position([0.0, -0.5, 0.3, -1.8, 0.2, 1.6, 0.5, 0.02, 0.02])


def _five_boxes(gs: Any, scene: Any) -> list[Any]:
    """Two stacks, the lower boxes of which touch the ground."""
    scene.add_entity(gs.morphs.Plane())
    places = [(0.0, 0.0, 0.1), (0.0, 0.0, 0.301), (0.25, 0.0, 0.1), (0.25, 0.0, 0.301), (0.0, 0.25, 0.1)]
    return [scene.add_entity(gs.morphs.Box(size=(0.2, 0.2, 0.2), pos=place)) for place in places]


_MPM = _of_matter(lambda gs: gs.materials.MPM.Elastic(), 0.2, 0.3)

SCENES: dict[str, Scene] = {
    "box": Scene(_box, _bodies),
    "stack of 3 in 8 environments": Scene(_stack, _bodies, environments=8),
    "arm with inverse kinematics": Scene(_file("MJCF", "xml/franka_emika_panda/panda.xml"), _bodies, before_step=_reach),
    "humanoid": Scene(_file("MJCF", "xml/humanoid.xml"), _bodies, steps=10),
    "quadruped": Scene(_file("URDF", "urdf/go2/urdf/go2.urdf", pos=(0, 0, 0.4)), _bodies, steps=10),
    "mesh": Scene(_file("Mesh", "meshes/duck/duck.obj", scale=0.1, pos=(0, 0, 0.2)), _bodies),
    "terrain": Scene(_terrain, _bodies),
    "MPM": Scene(_MPM, _particles, _bounded("MPM", 10, grid_density=32)),
    "SPH": Scene(_of_matter(lambda gs: gs.materials.SPH.Liquid(), 0.2, 0.3), _particles, _bounded("SPH", 4, particle_size=0.02)),
    "PBD": Scene(_of_matter(lambda gs: gs.materials.PBD.Liquid(), 0.2, 0.3), _particles, _bounded("PBD", 4, particle_size=0.02)),
    "FEM, implicit, SAP coupler": Scene(_of_matter(_elastic, 0.2, 0.15, ground=False), _vertices, _implicit, precision="64"),
    "gradient of MPM": Scene(_MPM, _particles, _bounded("MPM", 10, True, grid_density=32), differentiate=_by_velocity(5)),
    "gradient of a rigid body": Scene(_box, _bodies, _differentiable, differentiate=_by_joints(5)),
}

# Scenes that are timed in many environments.
SCALED: dict[str, Scene] = {
    "arm": Scene(_file("MJCF", "xml/franka_emika_panda/panda.xml"), _bodies, before_step=_hold),
    "quadruped": Scene(_file("URDF", "urdf/go2/urdf/go2.urdf", pos=(0, 0, 0.4)), _bodies),
    "boxes": Scene(_five_boxes, _bodies),
}
