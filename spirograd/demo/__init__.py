"""The demo of `spirograd demo`: a simulation, its picture, and the comparison of the back ends."""
