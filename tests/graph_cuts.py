"""What the solvers are compared with: the authors' way, image by image through a compiled graph cut; exact minimum cuts; and problems to solve.

Shared by the tests and by ``benchmarks/solvers.py``. Needs NumPy and SciPy, and ``gco-wrapper`` for the alpha-beta swaps.
"""

from __future__ import annotations

import itertools
import math
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor
from torch.nn import functional

import mixsage
from mixsage import data, sampling
from mixsage.saliency import normalise
from mixsage.solvers import LevelProblem, best_levels, comixup
from mixsage.solvers.joint import JointProblem
from mixsage.solvers.puzzle import Weights, block_means, mask_problem

PUBLISHED = Weights(smoothness=1.2, data_smoothness=0.5, prior=0.2)
PUBLISHED_JOINT = comixup.Weights(smoothness=0.32, diversity=1.0, prior=0.05, threshold=0.83, compatibility=0.001)

# ----------------------------------------------------------------------------------------------------------------------------- problems


def made_up(kind: str, batch: int, side: int, seed: int, levels: int = 3, size: int = 32) -> LevelProblem:
    """A mask problem of Puzzle Mix from images and maps that are drawn at random, in one of several manners."""
    draw = torch.Generator().manual_seed(seed)

    def smooth(channels: int, grain: int, power: float) -> Tensor:
        coarse = torch.rand(batch, channels, grain, grain, generator=draw) ** power
        return functional.interpolate(coarse, size=size, mode="bilinear")

    images, maps = {
        "noise": lambda: (torch.rand(batch, 3, size, size, generator=draw), torch.rand(batch, size, size, generator=draw)),
        "peaks": lambda: (torch.rand(batch, 3, size, size, generator=draw), torch.rand(batch, size, size, generator=draw) ** 8),
        "smooth": lambda: (smooth(3, 8, 1), smooth(1, 6, 3)[:, 0]),
    }[kind]()
    share, partners = torch.rand(1, generator=draw), torch.randperm(batch, generator=draw)
    block = size // side
    parts = max(1, block // min(4, block))
    return mask_problem(images, maps, partners, share, side=side, parts=parts, levels=levels, weights=PUBLISHED)


@cache
def real_pictures(count: int = 100) -> tuple[str, Tensor, Tensor]:
    """Where they come from, images [count, C, H, W] as colours, and their raw maps: gradients of a small network after a few steps of training.

    CIFAR-10 where MIXSAGE_DATA holds it, the embedded sample elsewhere.
    """
    folder = Path(os.environ.get("MIXSAGE_DATA") or "/nowhere")
    source = "cifar10" if any((at / "data_batch_1").exists() for at in (folder, folder / "cifar-10-batches-py")) else "sample"
    loaded = data.load(source)
    chosen = data.per_class(loaded.train.labels, 100)
    images, labels = torch.stack([loaded.train.read(int(row)) for row in chosen]).float() / 255, loaded.train.labels[chosen]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mixsage.models.small_convnet(in_channels=images.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(0)
    for rows in torch.cat([torch.randperm(len(images), generator=draw) for _ in range(2)]).split(50):
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = torch.randperm(len(images), generator=draw)[:count]
    leaf = images[rows].requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(model.eval()(leaf), labels[rows]), leaf)
    return source, images[rows], gradient.square().mean(dim=1).sqrt()


def real(side: int, seed: int, levels: int = 3, count: int = 100) -> LevelProblem:
    """A mask problem of Puzzle Mix from real images and maps."""
    _, images, maps = real_pictures(count)
    draw = torch.Generator().manual_seed(seed)
    share, partners = torch.rand(1, generator=draw), torch.randperm(count, generator=draw)
    block = images.shape[-1] // side
    parts = max(1, block // min(4, block))
    return mask_problem(images, maps, partners, share, side=side, parts=parts, levels=levels, weights=PUBLISHED)


def real_moves(side: int, seed: int, count: int = 100) -> tuple[Tensor, Tensor]:
    """A transport problem of real maps: saliency [count, n·n] of the blocks that move, and the places that the exact mask shows."""
    finer = max(side, 8)
    _, _, maps = real_pictures(count)
    saliency = normalise(block_means(normalise(maps), finer)).flatten(1)
    levels = best_levels(real(side, seed, count=count))
    shown = (levels > 0).repeat_interleave(finer // side, 1).repeat_interleave(finer // side, 2)
    return saliency, shown.flatten(1)


def joint_real(seed: int, side: int = 4, count: int = 100) -> JointProblem:
    """Joint problems of real maps, in parts of 20, with priors drawn as published."""
    _, _, maps = real_pictures(count)
    draw = torch.Generator().manual_seed(seed)
    cut = comixup.Parts.of(count, 20)
    maps = maps[torch.randperm(count, generator=draw)]
    return comixup.joint_problem(maps, sampling.dirichlet(2.0, cut.member, draw), cut, side, PUBLISHED_JOINT)


def tight(batch: int, side: int, seed: int, levels: int = 3) -> LevelProblem:
    """Random costs whose borders weigh as much as their blocks: the hardest."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.linspace(0, 1, levels)
    one, other, bend = (torch.rand(batch, side, side, 1, generator=draw) for _ in range(3))
    unary = 4 / side**2 * (one * share + other * (1 - share) + 0.2 * bend * (share - 0.5) ** 2)
    down, across = (
        0.075 / side * (1 + torch.rand(batch, *shape, generator=draw)) for shape in ((side - 1, side), (side, side - 1))
    )
    return LevelProblem(unary=unary, down=down, across=across)


# --------------------------------------------------------------------------------------------------------------- masks, one by one


def swap_cuts(problem: LevelProblem) -> Tensor:
    """Levels [B, n, n] by alpha-beta swaps, image by image, with costs cut to whole numbers as the authors cut them."""
    import gco

    scale, count = 1000 * problem.side**2, problem.levels
    pairwise = np.array([[(i - j) ** 2 / (count - 1) ** 2 for j in range(count)] for i in range(count)], dtype=np.float32)
    unary, down, across = (costs.numpy() for costs in (problem.unary, problem.down, problem.across))
    found = []
    for one, below, right in zip(unary, down, across, strict=True):
        # Their first label shows the image itself.
        costs = np.ascontiguousarray((scale * one[:, :, ::-1]).astype(np.int32))
        weights = (scale * below).astype(np.int32), (scale * right).astype(np.int32)
        labels = gco.cut_grid_graph(costs, pairwise, *weights, algorithm="swap")
        found.append(count - 1 - labels.reshape(one.shape[:2]))
    return torch.from_numpy(np.stack(found)).long()


def best_by_trying(problem: LevelProblem) -> Tensor:
    """[B] the least energy, over all labellings."""
    side = problem.side
    every = torch.tensor(list(itertools.product(range(problem.levels), repeat=side**2))).view(-1, side, side)
    batch = len(problem.unary)
    return torch.stack([problem.pick(torch.full((len(every),), b)).energy(every).min() for b in range(batch)])


def minimum_cuts(problem: LevelProblem, scale: float = 1e7) -> Tensor:
    """Levels [B, n, n] by one exact minimum cut an image: a node for each step up of each block, on the source's side where it is taken."""
    side, top = problem.side, problem.levels - 1
    node = np.arange(side * side * top).reshape(side, side, top)
    source, sink, never = side * side * top, side * side * top + 1, 2**30
    answers = []
    for b in range(len(problem.unary)):
        unary = problem.unary[b].double().numpy()
        unary = (unary - unary.min(axis=-1, keepdims=True)) * scale
        edges = [(np.full(side * side, source), node[..., 0].ravel(), unary[..., 0].ravel())]
        for level in range(1, top):
            edges.append((node[..., level - 1].ravel(), node[..., level].ravel(), unary[..., level].ravel()))
            edges.append((node[..., level].ravel(), node[..., level - 1].ravel(), np.full(side * side, never)))
        edges.append((node[..., top - 1].ravel(), np.full(side * side, sink), unary[..., top].ravel()))
        borders = (
            (node[:-1], node[1:], problem.down[b].double().numpy()),
            (node[:, :-1], node[:, 1:], problem.across[b].double().numpy()),
        )
        for first, second, weight in borders:
            for high, low in itertools.product(range(top), repeat=2):
                # The second difference of the squared distance: 1 between equal steps, 2 where the one lies above the other.
                times = (high == low) + 2 * (high > low)
                if times:
                    cost = (weight * scale * times / top**2).ravel()
                    edges.append((first[..., high].ravel(), second[..., low].ravel(), cost))
                    edges.append((second[..., high].ravel(), first[..., low].ravel(), cost))
        rows, columns, capacity = (np.concatenate(part) for part in zip(*edges, strict=True))
        shape = (sink + 1, sink + 1)
        graph = coo_matrix((np.rint(capacity).astype(np.int32), (rows, columns)), shape=shape).tocsr()
        left = (graph - maximum_flow(graph, source, sink).flow).tocsr()
        left.data[left.data < 0] = 0
        left.eliminate_zeros()
        taken = np.zeros(sink + 1, dtype=bool)
        taken[breadth_first_order(left, source, return_predecessors=False)] = True
        answers.append(taken[: side * side * top].reshape(side, side, top).sum(axis=-1))
    return torch.from_numpy(np.stack(answers))


# ----------------------------------------------------------------------------------------------------------------------- transport


def distance_table(side: int) -> Tensor:
    """[n·n, n·n] squared distance of block and place over (n - 1)², pair by pair."""
    blocks = list(itertools.product(range(side), repeat=2))
    table = [[((i - k) ** 2 + (j - l) ** 2) / max(1, side - 1) ** 2 for k, l in blocks] for i, j in blocks]
    return torch.tensor(table)


def published_auction(saliency: Tensor, visible: Tensor, distance: float) -> Tensor:
    """Which block goes where, [B, n·n blocks, n·n places] 0 or 1, by the rounds of bids that the authors publish; hidden places may stay empty."""
    side = math.isqrt(saliency.shape[1])
    cost = distance * distance_table(side) - saliency[:, :, None] * visible[:, None, :].float()
    won = torch.zeros_like(cost)
    for _ in range(side):
        bids = torch.zeros_like(cost).scatter_(2, cost.argmin(dim=2, keepdim=True), 1)
        winner = (bids * cost).argmin(dim=1, keepdim=True)
        won = torch.zeros_like(cost).scatter_(1, winner, 1) * bids
        cost = cost + (bids - won)
    return won


def auction_cost(won: Tensor, saliency: Tensor, visible: Tensor, distance: float) -> Tensor:
    """[B] its cost over the places that the mask shows."""
    cost = distance * distance_table(math.isqrt(saliency.shape[1])) - saliency[:, :, None]
    return ((won * cost).sum(dim=1) * visible).sum(dim=1)


def optimal_assignment_cost(saliency: Tensor, visible: Tensor, distance: float) -> Tensor:
    """[B] the least cost over the places that the mask shows, image by image."""
    moves = distance * distance_table(math.isqrt(saliency.shape[1]))
    costs = []
    for one, places in zip(saliency, visible, strict=True):
        table = (moves - one[:, None])[:, places].double().numpy()
        costs.append(table[linear_sum_assignment(table)].sum())
    return torch.tensor(costs, dtype=torch.float32)


# --------------------------------------------------------------------------------------------------------------------- Co-Mixup


def joint_objective(problem: JointProblem, part: int, shares: Tensor) -> float:
    """What the shares [m, n, n, m] of a part cost, term by term."""
    count, side = shares.shape[0], shares.shape[1]
    total = 0.0
    for output in range(count):
        for row, column in itertools.product(range(side), repeat=2):
            here = shares[output, row, column]
            total += float((problem.cost[part, :, row, column] * here).sum())
            for below, right in ((row + 1, column), (row, column + 1)):
                if below < side and right < side:
                    total += problem.smoothness / 2 * float(((here - shares[output, below, right]) ** 2).sum())
        use = shares[output].sum(dim=(0, 1))
        others = shares.sum(dim=(0, 1, 2)) - use
        felt = problem.compatibility[part] @ others
        total += problem.diversity * float(sum(f * u for f, u in zip(felt, use, strict=True) if f > problem.threshold))
    return total


def joint_by_swap_cuts(problem: JointProblem, part: int, labels: Tensor, iterations: int = 4, apart: float = 1.0) -> Tensor:
    """Shares [m, n, n, m] of a part by the authors' outer loop, each output solved by alpha-beta swaps; ``labels`` [m, n·n] to start with."""
    import gco

    cost, mix = problem.cost[part], problem.compatibility[part]
    count, side = cost.shape[0], problem.side
    single, extra = torch.eye(count), torch.zeros(count, count)
    shares = functional.one_hot(labels, count).float().view(count, side, side, count)
    border = [np.full(shape, problem.smoothness, dtype=np.float32) for shape in ((side - 1, side), (side, side - 1))]
    halves_of_three = ((0, 1), (0, 2), (1, 2))
    for iteration in range(iterations):
        for output in range(count):
            use = shares[output].sum(dim=(0, 1))
            felt = mix @ (shares.sum(dim=(0, 1, 2)) - use)
            penalty = 2 * problem.diversity * torch.where(felt > problem.threshold, felt, 0) + extra[output]
            unary = (cost + penalty[:, None, None]).movedim(0, -1)
            several = int((use > 0).sum()) if iteration else 0
            parents = use.topk(min(3, several)).indices.sort().values.tolist() if several > 1 else []
            halves = [(parents[i], parents[j]) for i, j in halves_of_three if j < len(parents)]
            menu = torch.cat([single, *[(single[i] + single[j])[None] / 2 for i, j in halves]])
            unary = torch.cat([unary, *[(unary[..., i] + unary[..., j])[..., None] / 2 - 5e-4 for i, j in halves]], dim=-1)
            pairwise = 1 - np.eye(len(menu), dtype=np.float32)
            for k, half in enumerate(halves):
                for parent in half:
                    pairwise[count + k, parent] = pairwise[parent, count + k] = 0.25
            found = gco.cut_grid_graph(np.ascontiguousarray(unary.numpy()), pairwise, *border, algorithm="swap")
            shares[output] = menu[torch.from_numpy(found).long()].view(side, side, count)
        if iteration == iterations - 2:
            extra = apart * pulled_apart(shares.sum(dim=(1, 2)))
    return shares


def pulled_apart(use: Tensor) -> Tensor:
    """[m, m] 1 where an output lets go of an input, for each pair of outputs with the same inputs in turn."""
    used = [row.nonzero()[:, 0].tolist() for row in use > 0]
    extra = torch.zeros_like(use)
    for one, other in itertools.combinations(range(len(used)), 2):
        if used[one] == used[other] and len(used[one]) > 1:
            extra[one, used[one][0]] = 1
            extra[other, used[one][1]] = 1
    return extra


def joint_made_up(parts: int, count: int, side: int, seed: int) -> JointProblem:
    """Joint problems with the published weights, from smooth maps with a few peaks and from priors drawn as published."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(parts * count, 1, 6, 6, generator=draw) ** 4
    maps = functional.interpolate(coarse, size=32, mode="bilinear")[:, 0]
    cut = comixup.Parts.of(parts * count, count)
    expected = sampling.dirichlet(2.0, cut.member, draw)
    return comixup.joint_problem(maps, expected, cut, side, PUBLISHED_JOINT)
