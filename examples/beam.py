"""Find the stiffest beam of half the material: topology optimisation, with forces by conjugate gradients and slopes by a tape.

The beam of E. Andreassen and others (Efficient topology optimization in MATLAB using 88 lines of code, 2011), whose compliance on 60 x 20
elements is 216.81 there. A cell of density x has the stiffness x^3. Displacements u minimise the energy u'Ku - 2f'u, so that the slope of
the compliance f'u is that of -u'Ku for fixed u: a tape differentiates this sum.
"""

import numpy as np
from common import finish, start
from matplotlib import pyplot

import spirograd as sg

POISSON, LEAST, VOLUME, MOVE = 0.3, 1e-9, 0.5, 0.2
CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])


def element_stiffness():
    """Return the stiffness of a square in plane stress: forces on its corners by displacements of them, 8 x 8."""
    law = np.array([[1, POISSON, 0], [POISSON, 1, 0], [0, 0, (1 - POISSON) / 2]]) / (1 - POISSON**2)
    stiffness, signs = np.zeros((8, 8)), 2 * CORNERS - 1
    for point in signs / np.sqrt(3):
        slopes = signs * (1 + signs[:, ::-1] * point[::-1]) / 2
        strain = np.zeros((3, 8))
        strain[0, ::2] = strain[2, 1::2] = slopes[:, 0]
        strain[1, 1::2] = strain[2, ::2] = slopes[:, 1]
        stiffness += strain.T @ law @ strain / 4
    return stiffness


@sg.data_oriented
class Beam:
    """Half of a beam of ``nx`` x ``ny`` elements, which a force at its middle bends. ``radius``: of the filter, in elements."""

    def __init__(self, nx, ny, radius):
        self.nx, self.ny, self.radius = nx, ny, radius
        self.K, self.corners = sg.Matrix.field(2, 2, sg.f64, (4, 4)), sg.Vector.field(2, sg.i32, 4)
        self.K.from_numpy(element_stiffness().reshape(4, 2, 4, 2).swapaxes(1, 2))
        self.corners.from_numpy(CORNERS.astype(np.int32))
        self.x = sg.field(sg.f64, (nx, ny), needs_grad=True)
        self.slope = sg.field(sg.f64, (nx, ny))
        self.energy = sg.field(sg.f64, (), needs_grad=True)
        # At the nodes; displacements are scaled, so that the matrix has ones on its diagonal.
        self.u, self.force, self.scale = (sg.Vector.field(2, sg.f64, (nx + 1, ny + 1)) for _ in range(3))
        self.free = sg.Vector.field(2, sg.i32, (nx + 1, ny + 1))
        self.x.fill(VOLUME)
        free = np.ones((nx + 1, ny + 1, 2), np.int32)
        free[0, :, 0] = free[-1, 0, 1] = 0
        self.free.from_numpy(free)

    @sg.func
    def stiffness(self, i, j):
        """The stiffness of an element; of those outside 0."""
        inside = i >= 0 and i < self.nx and j >= 0 and j < self.ny
        return LEAST + (1.0 - LEAST) * self.x[i, j] ** 3 if inside else sg.cast(0.0, sg.f64)

    @sg.kernel
    def prepare(self):
        for i, j in self.scale:
            around = sg.cast(0.0, sg.f64)
            for di, dj in sg.static(sg.ndrange(2, 2)):
                around += self.stiffness(i - di, j - dj)
            for k in sg.static(range(2)):
                self.scale[i, j][k] = self.free[i, j][k] / sg.sqrt(around * self.K[0, 0][0, 0])
            self.force[i, j] = [0.0, 0.0]
        self.force[0, self.ny] = [0.0, -self.scale[0, self.ny].y]

    @sg.kernel
    def multiply(self, v: sg.Template, product: sg.Template):
        for i, j in v:
            total = sg.Vector.zero(sg.f64, 2)
            for a in range(4):  # the element of which this node is corner a
                e = sg.Vector([i, j]) - self.corners[a]
                if e.x >= 0 and e.x < self.nx and e.y >= 0 and e.y < self.ny:
                    pull = sg.Vector.zero(sg.f64, 2)
                    for b in range(4):
                        at = e + self.corners[b]
                        pull += self.K[a, b] @ (self.scale[at] * v[at])
                    total += self.stiffness(e.x, e.y) * pull
            for k in sg.static(range(2)):
                product[i, j][k] = self.scale[i, j][k] * total[k] if self.free[i, j][k] == 1 else v[i, j][k]

    @sg.kernel
    def measure(self):
        for i, j in self.x:
            own = sg.cast(0.0, sg.f64)
            for a in range(4):
                for b in range(4):
                    p, q = sg.Vector([i, j]) + self.corners[a], sg.Vector([i, j]) + self.corners[b]
                    own += (self.scale[p] * self.u[p]).dot(self.K[a, b] @ (self.scale[q] * self.u[q]))
            self.energy[None] -= (LEAST + (1.0 - LEAST) * self.x[i, j] ** 3) * own

    @sg.kernel
    def filter(self):
        """Average slopes over neighbours."""
        reach = sg.static(int(np.ceil(self.radius)) - 1)
        for i, j in self.slope:
            total, weights = sg.cast(0.0, sg.f64), sg.cast(0.0, sg.f64)
            for di, dj in sg.static(sg.ndrange((-reach, reach + 1), (-reach, reach + 1))):
                weight = sg.static(max(0.0, self.radius - float(np.hypot(di, dj))))
                if i + di >= 0 and i + di < self.nx and j + dj >= 0 and j + dj < self.ny:
                    total += weight * self.x[i + di, j + dj] * self.x.grad[i + di, j + dj]
                    weights += weight
            self.slope[i, j] = total / weights / sg.max(self.x[i, j], 1e-3)

    def improve(self):
        """Move material to where it makes the beam stiffer. Return the compliance before, and the largest change."""
        self.prepare()
        if not sg.linalg.MatrixFreeCG(sg.linalg.LinearOperator(self.multiply), self.force, self.u, tol=1e-6, maxiter=20_000):
            raise RuntimeError("conjugate gradients did not converge")
        self.energy.fill(0)
        with sg.ad.Tape(self.energy):
            self.measure()
        self.filter()
        x, slope, low, high = self.x.to_numpy(), self.slope.to_numpy(), 0.0, 1e9
        new = x
        while (high - low) / (high + low) > 1e-3:  # the price of material with which the volume is right
            price = (low + high) / 2
            new = np.clip(x * np.sqrt(-slope / price), np.maximum(0, x - MOVE), np.minimum(1, x + MOVE))
            low, high = (price, high) if new.mean() > VOLUME else (low, price)
        self.x.from_numpy(new)
        return -self.energy[None], abs(new - x).max()


def main():
    args = start(__doc__)
    beam = Beam(16, 6, 1.5) if args.quick else Beam(60, 20, 2.4)
    compliances, change = [], 1.0
    while change >= 0.01 and len(compliances) < (5 if args.quick else 200):
        compliance, change = beam.improve()
        compliances.append(compliance)
    print(f"compliance {compliances[0]:.2f} -> {compliances[-1]:.4f} in {len(compliances)} steps")
    draw(beam.x.to_numpy(), compliances, args.out / "beam.png")


def draw(x, compliances, path):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 2.4), layout="constrained", width_ratios=(4, 1))
    left.imshow(np.concatenate([x[::-1], x]).T, origin="lower", cmap="gray_r")
    left.set(xticks=[], yticks=[])
    right.semilogy(compliances)
    right.set(title="compliance", xlabel="step")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


main()
