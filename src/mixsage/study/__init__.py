"""Grids of runs, the records that they leave, and what can be concluded from them."""
