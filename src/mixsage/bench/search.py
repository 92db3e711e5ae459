"""What the search for the best rearrangement costs: all of them beside one per cent, and how it grows with the side of the images."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mixsage import models, rearrange
from mixsage.bench.results import Comparison, Curve, Row, Spread
from mixsage.bench.timing import Settings, Times, Work, ratio, take_turns
from mixsage.saliency import normalise, smooth

FULL, SAMPLED, STEP = "100 %", "1 %", "step"


def compare(settings: Settings) -> Comparison:
    """All rearrangements of large images beside the direct engine at one per cent, and of small ones beside a training step."""
    large, small, width = ((2, 24), (4, 16), 4) if settings.quick else ((64, 224), (100, 32), 64)
    first, second = maps(*large, settings.device)
    arms: dict[str, Work] = {
        FULL: lambda: rearrange.search(first, second, 1.0),
        SAMPLED: lambda: rearrange.search(first, second, 0.01, engine="direct", generator=torch.Generator().manual_seed(0)),
    }
    many = take_turns(arms, settings.rounds_or(7), settings.device)
    one, other = maps(*small, settings.device)
    arms = {
        FULL: lambda: rearrange.search(one, other, 1.0),
        SAMPLED: lambda: rearrange.search(one, other, 0.01, generator=torch.Generator().manual_seed(0)),
        STEP: _training(*small, width, settings.device),
    }
    few = take_turns(arms, settings.rounds_or(9), settings.device, calls={FULL: 5, SAMPLED: 5, STEP: 1})
    pairs = f"{small[1]}×{small[1]}, {small[0]} pairs"
    return Comparison(
        name="search",
        title="The search of all rearrangements, with the engine that is chosen by itself",
        setting=f"{large[0]} pairs of {large[1]}×{large[1]} and {small[0]} of {small[1]}×{small[1]}, float32; step: PreActResNet18 of "
        f"{width} channels on {small[0]} images",
        rows=(
            Row(
                name="full large",
                text=f"100 % at {large[1]}×{large[1]}, {large[0]} pairs / direct at 1 %",
                spread=ratio(many, FULL, SAMPLED),
                goal=1.2,
            ),
            Row(
                name="full small", text=f"100 % at {pairs} / training step", spread=ratio(few, FULL, STEP), unit="share", goal=0.025
            ),
            Row(name="sampled small", text=f"1 % at {pairs} / training step", spread=ratio(few, SAMPLED, STEP), unit="share"),
        ),
    )


def growth(settings: Settings) -> Comparison:
    """Seconds of a search over the side of the images, and the power that fits them."""
    sides, pairs = ((8, 12, 16), 2) if settings.quick else ((32, 64, 128, 256, 512), 8)
    rounds = settings.rounds_or(5)
    full = _over(sides, pairs, 1.0, "auto", settings, rounds)
    # The direct engine at one per cent grows with the fourth power: the largest side would take longer than all else together.
    sampled = _over(sides[:-1], pairs, 0.01, "direct", settings, rounds)
    powers = [power(sides, [full[str(side)][k] for side in sides]) for k in range(rounds)]
    return Comparison(
        name="growth",
        title="How the search grows with the side of the images",
        setting=f"{pairs} pairs, sides {sides[0]} to {sides[-1]}, float32",
        rows=(
            Row(
                name="power",
                text=f"power of the side, 100 %, {sides[0]} to {sides[-1]}",
                spread=Spread.of(powers),
                unit="power",
                goal=2.3,
            ),
        ),
        curves=(_curve("100 %", sides, full), _curve("direct engine, 1 %", sides[:-1], sampled)),
    )


def maps(pairs: int, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Maps as SAGE searches them: smoothed, normalised, rescaled."""
    generator = torch.Generator().manual_seed(0)
    both = normalise(smooth(torch.rand(2 * pairs, side, side, generator=generator).square().to(device)))
    return 0.3 * both[:pairs], 0.7 * both[pairs:]


def power(sides: tuple[int, ...], seconds: list[float]) -> float:
    """The exponent of the power law through the points, by least squares on logarithms.

    >>> round(power((10, 100, 1000), [1.0, 100.0, 10000.0]), 6)
    2.0
    """
    x, y = [log(side) for side in sides], [log(second) for second in seconds]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def _over(sides: tuple[int, ...], pairs: int, portion: float, engine: str, settings: Settings, rounds: int) -> Times:
    arms = {str(side): _searching(maps(pairs, side, settings.device), portion, engine) for side in sides}
    return take_turns(arms, rounds, settings.device)


def _searching(pair: tuple[Tensor, Tensor], portion: float, engine: str) -> Work:
    return lambda: rearrange.search(*pair, portion, engine=engine, generator=torch.Generator().manual_seed(0))


def _curve(name: str, sides: tuple[int, ...], times: Times) -> Curve:
    seconds = [Spread.of(times[str(side)]).median for side in sides]
    return Curve(name=name, sides=sides, seconds=tuple(seconds), power=power(sides, seconds))


def _training(batch: int, side: int, width: int, device: torch.device) -> Work:
    generator = torch.Generator().manual_seed(0)
    model = models.preactresnet18(num_classes=10, width=width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, side, side, generator=generator).to(device)
    labels = torch.randint(10, (batch,), generator=generator).to(device)

    def work() -> None:
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return work
