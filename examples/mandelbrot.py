"""The Mandelbrot set, coloured by how fast a point escapes."""

import numpy as np
from common import finish, start
from matplotlib import pyplot

import spirograd as sg


@sg.func
def square(z):
    """Return z * z of a complex number as a vector."""
    return sg.Vector([z[0] * z[0] - z[1] * z[1], 2.0 * z[0] * z[1]])


@sg.kernel
def mandelbrot(image: sg.types.NDArray[sg.f32, 2], limit: sg.i32):
    """Set ``image`` to 0 for points of the set, else to the smoothed number of iterations until escape."""
    for row, column in image:
        c = sg.Vector([3.2 * (column + 0.5) / image.shape[1] - 2.3, 2.4 * (row + 0.5) / image.shape[0] - 1.2])
        z = sg.Vector([0.0, 0.0])
        count = 0
        while count < limit and z.norm_sqr() < 256.0:
            z = square(z) + c
            count += 1
        image[row, column] = 0.0
        if count < limit:
            # The logarithm of the distance makes the colours continuous: log2(log(|z|)) grows by 1 each round.
            image[row, column] = count + 1.0 - sg.log(0.5 * sg.log(z.norm_sqr())) / sg.log(2.0)


def main():
    args = start(__doc__)
    height = 90 if args.quick else 900
    image = np.zeros((height, height * 4 // 3), np.float32)
    mandelbrot(image, 50 if args.quick else 500)
    path = args.out / "mandelbrot.png"
    pyplot.imsave(path, np.log1p(np.maximum(image, 0)), cmap="twilight_shifted")
    finish(path)


main()
