"""mixsage in other people's loops: torchvision, timm, Lightning, Fabric, Transformers, Accelerate; a module each.

A module here adapts and adds nothing: the methods, their settings and their arithmetic are those of `mixsage.accumulate`. None is imported by
`mixsage` itself; import the one that you need::

    from mixsage.integrations.lightning import Mixing
"""
