"""The problems that mixing methods pose, solved for all images of a batch at once, where the images are.

Plain torch throughout: the number of kernel launches does not depend on the batch, and nothing is copied to the host.
"""

from mixsage.solvers.cuts import best_levels
from mixsage.solvers.grid import LevelProblem
from mixsage.solvers.transport import transport, transport_cost

__all__ = ["LevelProblem", "best_levels", "transport", "transport_cost"]
