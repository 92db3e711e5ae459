"""Randomness without state: every stream of random numbers has an address, and the address is all that it depends on."""

from __future__ import annotations

import hashlib

from torch import Generator


def generator(seed: int, *path: int | str) -> Generator:
    """A CPU generator of its own for one purpose: the same seed and path give the same stream, on every machine and in every process.

    What a run draws at step k of epoch e then needs nothing but (e, k): it can be drawn again, out of order, or elsewhere.

    >>> import torch
    >>> torch.equal(torch.rand(3, generator=generator(0, "order", 4)), torch.rand(3, generator=generator(0, "order", 4)))
    True
    >>> torch.equal(torch.rand(3, generator=generator(0, "order", 4)), torch.rand(3, generator=generator(0, "order", 5)))
    False
    """
    address = (seed, *path)
    if not all(type(part) in (int, str) for part in address):
        raise TypeError(f"the address of a random stream is made of int and str, got {address!r}; convert with int(…) or str(…)")
    digest = hashlib.blake2b(repr(address).encode(), digest_size=8).digest()
    # Torch's CPU generator looks at 32 bits of a seed only; the hash has mixed the whole address into every bit.
    return Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
