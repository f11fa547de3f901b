"""Large programs that others wrote on members of the family, run on spirograd: whether they work, agree, and how long they take."""
