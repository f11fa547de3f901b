"""Genesis, a simulator of rigid bodies, fluids and soft matter: scenes on Quadrants, which it is made for, and on spirograd.

`python -m validation.clients.genesis` runs them; see docs/validation.md.
"""
