"""Blocks to where they show: the assignment of blocks to places that brings salient blocks under the visible part of a mask.

A block s that is shown at place t costs distance·|s - t|²/(n - 1)² - saliency(s). The published auction gives each block to the cheapest place that will have it, and
each place takes the cheapest of its claimants. As both sides rank by the same cost, that is deferred acceptance, and its outcome does not
depend on who claims first. So only blocks that could improve some place need to be looked at: most stay at home.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def transport(saliency: Tensor, visible: Tensor, distance: float) -> Tensor:
    """Which block each place shows: a permutation [B, n·n] int64 of each grid.

    On the host claims go on until there are none; on a device there are n rounds, as published. That makes a difference only where moving costs next
    to nothing, as then most blocks claim the same places.

    Args:
        saliency: [B, n·n] float32, not negative, of the blocks.
        visible: [B, n·n] bool, the places that the mask shows; only these count.
        distance: weight of the squared distance between block and place, whose largest value along a side is 1 [ξ].

    Example:
        >>> transport(torch.tensor([[0.0, 0.9, 0.1, 0.0]]), torch.tensor([[True, False, False, False]]), distance=0.5)
        tensor([[1, 0, 2, 3]])
    """
    batch, places = saliency.shape
    if visible.shape != saliency.shape or math.isqrt(places) ** 2 != places:
        raise ValueError(f"saliency and visible must both be [B, n·n], got {list(saliency.shape)} and {list(visible.shape)}")
    on_host = saliency.device.type == "cpu"
    moves = distance * squared_distances(math.isqrt(places), saliency.device)
    # What a place pays now. A place that the mask hides pays so little that nobody gets it.
    price = torch.where(visible, -saliency, -torch.inf).contiguous()
    # Whom each place shows, and which blocks no place shows; blocks are numbered through the batch, and the last entry stands for nobody.
    owner = torch.arange(batch * places + 1, device=saliency.device)
    free = torch.cat([~visible.flatten(), visible.new_zeros(1)])
    # The host counts claimants for nothing, and there are few. A device would wait for the count, so it goes through all blocks.
    claimants = (free[:-1] & _could_move(saliency, price, moves)).nonzero()[:, 0] if on_host else owner[:-1].clone()
    for _ in range(places if on_host else math.isqrt(places)):
        if not len(claimants):
            break
        place, cost = _claims(claimants, free, saliency, price, moves)
        claimants = _settle(claimants, place, cost, price, owner, free, on_host)
    return _complete(owner[:-1].view(batch, places) % places, free[:-1].view(batch, places), visible)


def transport_cost(order: Tensor, saliency: Tensor, visible: Tensor, distance: float) -> Tensor:
    """[B] cost of a permutation, over the places that the mask shows."""
    places = torch.arange(order.shape[1], device=order.device)
    moves = distance * squared_distances(math.isqrt(order.shape[1]), order.device)
    return ((moves[order, places] - saliency.gather(1, order)) * visible).sum(dim=1)


def squared_distances(side: int, device: torch.device | None = None) -> Tensor:
    """[n·n, n·n] float32: squared distance between blocks, (n - 1)² being 1."""
    step = torch.arange(side, device=device, dtype=torch.float32)
    along = ((step[:, None] - step) / max(1, side - 1)) ** 2
    return (along[:, None, :, None] + along[None, :, None, :]).reshape(side * side, side * side)


def _could_move(saliency: Tensor, price: Tensor, moves: Tensor) -> Tensor:
    """[B·n·n] whether there is any place that a block would improve: the least of move - price, one axis after the other."""
    side = math.isqrt(saliency.shape[1])
    along = moves[:side, :side]
    offers = -price.view(-1, side, side)
    across = (offers[:, :, None, :] + along).amin(dim=3)
    least = (across[:, None, :, :] + along[:, :, None]).amin(dim=2)
    return (least.flatten(1) < saliency).flatten()


def _claims(claimants: Tensor, free: Tensor, saliency: Tensor, price: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """For each claimant the cheapest place that would have it, and at what cost; infinite where there is none."""
    places = saliency.shape[1]
    image, block = claimants // places, claimants % places
    cost = moves[block] - saliency.flatten()[claimants][:, None]
    cost = torch.where((cost < price[image]) & free[claimants][:, None], cost, torch.inf)
    least, place = cost.min(dim=1)
    return image * places + place, least


def _settle(claimants: Tensor, place: Tensor, cost: Tensor, price: Tensor, owner: Tensor, free: Tensor, on_host: bool) -> Tensor:
    """Each place takes the cheapest of its claimants, written into ``price``, ``owner`` and ``free``; who may claim next."""
    nobody = len(owner) - 1
    price = price.view(-1)
    price.scatter_reduce_(0, place, cost, "amin")
    cheapest = cost.isfinite() & (cost == price[place])
    # Of claimants that cost the same, the first wins.
    winner = torch.full_like(owner, nobody).scatter_reduce_(0, place, torch.where(cheapest, claimants, nobody), "amin")
    taken = winner != nobody
    released = torch.where(taken, owner, nobody)
    # index_fill_ takes its value along with the launch; an assignment would move it to the device, and wait.
    free.index_fill_(0, winner, False).index_fill_(0, released, True)
    owner.copy_(torch.where(taken, winner, owner))
    if not on_host:
        return claimants
    lost = cost.isfinite() & (winner[place] != claimants)
    return torch.cat([claimants[lost], released[taken]])


def _complete(owner: Tensor, free: Tensor, visible: Tensor) -> Tensor:
    """The permutation: hidden places keep their own block where it is free, and share out the others in order."""
    own = torch.arange(owner.shape[1], device=owner.device).expand_as(owner)
    stays = free & ~visible
    order = torch.where(visible, owner, own)
    open_places, strays = ~visible & ~stays, free & ~stays
    # The k-th stray goes to the k-th open place. Whatever is no stray is written to a place past the end.
    rank = torch.where(strays, strays.cumsum(dim=1) - 1, owner.shape[1])
    queue = order.new_zeros(len(owner), owner.shape[1] + 1).scatter_(1, rank, own)
    return torch.where(open_places, queue.gather(1, (open_places.cumsum(dim=1) - 1).clamp_min(0)), order)
