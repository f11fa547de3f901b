"""Samples, normals, rays and updates of sparse voxel volumes: the package xuvdb."""

from __future__ import annotations

import numpy as np
import xuvdb

from validation.clients.packages.recording import Recording

SIZE = 0.05  # of a voxel


def main() -> None:
    recording, draw = Recording(), np.random.default_rng(0)
    grid = xuvdb.VdbGrid(background=3 * SIZE, voxel_size=SIZE, leaf_log2=4, name="balls", grid_class="level set")
    grid.stamp_sphere((0.3, 0.2, 0.1), radius=0.25, band=3.0)
    grid.stamp_sphere((0.5, 0.2, 0.1), radius=0.10)
    grid.prune()
    volume = xuvdb.GpuVolume(grid)
    points = draw.uniform(-0.2, 0.9, (4000, 3)).astype(np.float32)
    origins = np.array([0.3, 0.2, 2.0]) + draw.uniform(-0.2, 0.2, (64, 3))
    down = np.tile([0.0, 0.0, -1.0], (64, 1))

    recording.time("nearest", lambda: volume.sample(points, linear=False))
    recording.time("linear", lambda: volume.sample(points, linear=True))
    recording.time("quadratic", lambda: volume.sample(points, order=2))
    recording.time("normals", lambda: volume.sdf_normal(points))
    recording.time("rays", lambda: _distances(volume.ray_surface_hit(origins, down)))
    volume.write_voxels(points[:100], np.full(100, -0.01, np.float32))
    recording.time("linear after writes", lambda: volume.sample(points, linear=True))

    other = xuvdb.VdbGrid(background=0.3, voxel_size=0.1, leaf_log2=3, grid_class="level set")
    other.stamp_sphere((0, 0, 0), radius=0.5, band=3.0)
    batch, ids = xuvdb.gpu.VolumeBatch([grid, other]), (np.arange(4000) % 2).astype(np.int32)
    recording.time("two volumes", lambda: batch.sample(points, ids))
    recording.time("rays in two volumes", lambda: _distances(batch.ray_surface_hit(origins, down, ids[:64])))
    recording.write()


def _distances(hits: list[tuple[float, ...] | None]) -> list[float]:
    return [np.nan if hit is None else hit[0] for hit in hits]


if __name__ == "__main__":
    main()
