"""Published packages made for Quadrants, driven through their public interface on Quadrants and on spirograd."""
