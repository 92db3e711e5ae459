"""What Puzzle Mix's and Co-Mixup's solvers cost and how good they are, beside graph cuts image by image.

python benchmarks/solvers.py [--rounds N] [--images N] [--problems N] [--json benchmarks/results/solvers_cpu.json]

Speed: masks and transport of a batch of 32×32 images, the mean over grids of 2, 4, 8 and 16 blocks a side, and the joint problems of Co-Mixup's parts of 20; each beside α-β
swaps (gco-wrapper) and the published auction on the same problems and cores, in turn in every round. Goals: 5 and 2 times as fast. Energy: distributions of the
gap to the exact minimum cut, and to the optimal assignment, on random and on real problems (CIFAR-10 where MIXSAGE_DATA holds it, the embedded sample elsewhere).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from common import RESULTS, environment, median_and_spread

import graph_cuts
from mixsage.solvers import LevelProblem, best_levels, transport, transport_cost
from mixsage.solvers.joint import JointProblem, solve

GRIDS = (2, 4, 8, 16)
DISTANCE = 0.8
EXACT = 2e-6
"""A relative gap below this is the rounding of float32."""
GOALS = {"Puzzle Mix: masks and transport": 5.0, "Co-Mixup: joint problems": 2.0}

Moves = tuple[Tensor, Tensor]


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def starts_of(problem: JointProblem, starts: int, seed: int) -> Tensor:
    """Inputs that outputs start with, [P, starts, m, n·n]."""
    parts, count = problem.member.shape
    return torch.randint(count, (parts, starts, count, problem.side**2), generator=torch.Generator().manual_seed(seed))


def joint_by_cuts(problem: JointProblem, labels: Tensor) -> Tensor:
    """Shares of all parts by the authors' loop, one part after the other, from one start."""
    return torch.stack([graph_cuts.joint_by_swap_cuts(problem, part, labels[part, 0]) for part in range(len(labels))])


def both_moves(problems: Moves) -> Moves:
    """The transport of the images and of their partners, which see the mask from its other side."""
    saliency, visible = problems
    return torch.cat([saliency, saliency.flip(0)]), torch.cat([visible, ~visible.flip(0)])


# -------------------------------------------------------------------------------------------------------------------------- speed


def speed(rounds: int, images: int) -> dict[str, Any]:
    """Graph cuts' time over ours, per round; and milliseconds of either."""
    masks = {side: graph_cuts.real(side, seed=side, count=images) for side in GRIDS}
    moves = {side: both_moves(graph_cuts.real_moves(side, seed=side, count=images)) for side in GRIDS}
    joint = graph_cuts.joint_real(0, count=images)
    starts = starts_of(joint, 2, 0)

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
    for side in GRIDS:
        pairs[f"masks, {side}×{side}"] = partial(best_levels, masks[side]), partial(graph_cuts.swap_cuts, masks[side])
        arms = transport, graph_cuts.published_auction
        pairs[f"transport, {side}×{side}"] = partial(arms[0], *moves[side], DISTANCE), partial(arms[1], *moves[side], DISTANCE)
    pairs["Co-Mixup: joint problems"] = partial(solve, joint, starts, 4, 1.0), partial(joint_by_cuts, joint, starts)
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
    for number in range(rounds + 1):
        for name, arms in pairs.items():
            spent = [timed(work) for work in arms]
            if number:  # the first round warms up
                for kept, seconds in zip(times[name], spent, strict=True):
                    kept.append(seconds)

    def average(kinds: tuple[str, ...]) -> tuple[list[float], list[float]]:
        """Over the grids, as each batch draws one; kinds of problems that a step poses together are added."""
        parts = [times[f"{kind}, {side}×{side}"] for kind in kinds for side in GRIDS]
        ours, theirs = (
            [sum(seconds) / len(GRIDS) for seconds in zip(*(arms[which] for arms in parts), strict=True)] for which in (0, 1)
        )
        return ours, theirs

    times["masks, mean of the grids"] = average(("masks",))
    times["Puzzle Mix: masks and transport"] = average(("masks", "transport"))
    return {
        name: {
            "times_faster": median_and_spread([slow / fast for fast, slow in zip(*arms, strict=True)]),
            "ours_ms": 1e3 * median_and_spread(arms[0])["median"],
            "graph_cuts_ms": 1e3 * median_and_spread(arms[1])["median"],
            "goal": GOALS.get(name),
        }
        for name, arms in times.items()
    }


# ------------------------------------------------------------------------------------------------------------------------- energy


def distribution(gaps: Tensor) -> dict[str, float]:
    """Mean and quantiles of gaps, and the share of problems without one."""
    quantiles = gaps.double().quantile(torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=torch.float64)).tolist()
    names = ("median", "q90", "q99", "max")
    return {
        "mean": float(gaps.double().mean()),
        **dict(zip(names, quantiles, strict=True)),
        "exact": float((gaps < EXACT).double().mean()),
        "count": len(gaps),
    }


def mask_gaps(problems: list[LevelProblem]) -> dict[str, dict[str, float]]:
    """Ours, and the swaps', over the exact minimum cut."""
    arms: dict[str, list[Tensor]] = {"ours": [], "graph cuts": []}
    for problem in problems:
        least = problem.energy(graph_cuts.minimum_cuts(problem))
        for name, way in (("ours", best_levels), ("graph cuts", graph_cuts.swap_cuts)):
            energy = problem.energy(way(problem))
            arms[name].append((energy - least) / least.abs())
    return {name: distribution(torch.cat(gaps)) for name, gaps in arms.items()}


def transport_gaps(problems: list[Moves]) -> dict[str, dict[str, float]]:
    """Ours, and the published auction's, over the optimal assignment, on the places that the mask shows."""
    arms: dict[str, list[Tensor]] = {"ours": [], "auction": []}
    for saliency, visible in problems:
        seen = visible.any(dim=1)
        least = graph_cuts.optimal_assignment_cost(saliency, visible, DISTANCE)
        costs = {
            "ours": transport_cost(transport(saliency, visible, DISTANCE), saliency, visible, DISTANCE),
            "auction": graph_cuts.auction_cost(
                graph_cuts.published_auction(saliency, visible, DISTANCE), saliency, visible, DISTANCE
            ),
        }
        for name, cost in costs.items():
            arms[name].append(((cost - least) / least.abs())[seen])
    return {name: distribution(torch.cat(gaps)) for name, gaps in arms.items()}


def joint_gaps(problems: list[JointProblem]) -> dict[str, dict[str, float]]:
    """The objective of ours less that of the loop with graph cuts, an output (objectives are near 0, so not as a share): below 0 ours is better."""
    arms: dict[str, list[Tensor]] = {"two starts, as by default": [], "one start, as the authors": []}
    cuts = []
    for seed, problem in enumerate(problems):
        labels, outputs = starts_of(problem, 2, seed), problem.member.shape[1]
        theirs = problem.objective(joint_by_cuts(problem, labels))
        cuts.append(theirs / outputs)
        for name, starts in zip(arms, (2, 1), strict=True):
            found = problem.objective(solve(problem, labels[:, :starts], 4, 1.0))
            arms[name].append((found - theirs) / outputs)
    level = float(torch.cat(cuts).double().mean())
    return {name: distribution(torch.cat(gaps)) | {"graph_cuts": level} for name, gaps in arms.items()}


def energies(problems: int) -> dict[str, Any]:
    """Distributions of gaps, on problems of each origin and size."""
    found: dict[str, Any] = {"masks": {}, "transport": {}, "joint": {}}
    for side in GRIDS:
        name = f"{side}×{side}"
        found["masks"][f"random, {name}"] = mask_gaps([graph_cuts.made_up("smooth", problems, side, seed=side)])
        found["masks"][f"real, {name}"] = mask_gaps([graph_cuts.real(side, seed=side, count=problems)])
        if side in (8, 16):
            draw = torch.Generator().manual_seed(side)
            saliency = torch.rand(problems, side * side, generator=draw) ** 3
            shown = graph_cuts.made_up("smooth", problems, side, seed=side)
            random = saliency / saliency.sum(dim=1, keepdim=True), (best_levels(shown) > 0).flatten(1)
            found["transport"][f"random, {name}"] = transport_gaps([random])
            found["transport"][f"real, {name}"] = transport_gaps([graph_cuts.real_moves(side, seed=side, count=problems)])
    parts = max(1, problems // 20)
    found["joint"]["random"] = joint_gaps([graph_cuts.joint_made_up(parts, 20, 4, seed=seed) for seed in range(4)])
    found["joint"]["real"] = joint_gaps([graph_cuts.joint_real(seed, count=20 * parts) for seed in range(4)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=100, help="images in the batch whose speed is measured, a multiple of 20")
    parser.add_argument("--problems", type=int, default=100, help="problems of each kind whose gaps are measured")
    parser.add_argument("--json", type=Path, help=f"where the record goes, for example {RESULTS.name}/solvers_cpu.json")
    options = parser.parse_args()
    source = graph_cuts.real_pictures(options.images)[0]

    record: dict[str, Any] = {"speed": speed(options.rounds, options.images), "energy": energies(options.problems)}
    record |= {"images": options.images, "rounds": options.rounds, "real": source, **environment()}
    print(
        f"{f'{options.images} images of 32×32':<34}{'times faster':>14}{'5 %':>8}{'95 %':>8}{'goal':>7}{'ours ms':>10}{'cuts ms':>10}"
    )
    for name, row in record["speed"].items():
        ratio, goal = row["times_faster"], row["goal"]
        print(
            f"{name:<34}{ratio['median']:>14.2f}{ratio['low']:>8.2f}{ratio['high']:>8.2f}{f'≥ {goal:.0f}' if goal else '':>7}"
            f"{row['ours_ms']:>10.1f}{row['graph_cuts_ms']:>10.1f}"
        )
    for kind, title in (
        ("masks", "masks, over the minimum cut"),
        ("transport", "transport, over the optimum"),
        ("joint", "joint, less graph cuts, an output"),
    ):
        print(f"\n{title:<50}{'mean':>11}{'median':>11}{'90 %':>11}{'99 %':>11}{'max':>11}{'no gap':>8}")
        for origin, arms in record["energy"][kind].items():
            for arm, gaps in arms.items():
                numbers = "".join(f"{gaps[key]:>11.1e}" for key in ("mean", "median", "q90", "q99", "max"))
                share = f"{100 * gaps['exact']:>6.0f} %"
                print(f"{f'{origin}: {arm}':<50}{numbers}{share}")
    print(f"\n{record['machine']}, torch {record['torch']}, {record['threads']} threads, {options.rounds} rounds; real: {source}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
