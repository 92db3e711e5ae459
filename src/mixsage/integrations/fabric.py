"""Lightning Fabric: a host for loops whose model `fabric.setup` has set up.

It needs nothing of Fabric's but the object itself, and lies in the core, where the trainer uses it too::

    step = mixsage.accumulate(mixsage.SAGE(), model, images, labels, host=FabricHost(fabric, model))
"""

from __future__ import annotations

from mixsage.host import FabricHost

__all__ = ["FabricHost"]
