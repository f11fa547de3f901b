"""A splash: the moving least squares material point method.

The kernel is in `spirograd/demo/mpm.py`, which `spirograd demo` runs too.
"""

from common import finish, start

from spirograd.demo.mpm import Fluid
from spirograd.demo.picture import draw


def main():
    args = start(__doc__)
    fluid = Fluid(particles=512, cells=32) if args.quick else Fluid()
    fluid.reset()
    snapshots = []
    for panel in range(4):
        if panel:
            fluid.run(20 if args.quick else 800)
        seconds = panel * (20 if args.quick else 800) * fluid.dt
        snapshots.append((seconds, fluid.positions(), fluid.velocity.to_numpy()))
    path = args.out / "mpm88.png"
    draw(snapshots, path, f"{fluid.particles:,} particles on {args.arch}")
    finish(path)


main()
