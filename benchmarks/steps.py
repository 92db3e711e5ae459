"""What a training step costs with each method, as a ratio to a step without mixing.

python benchmarks/steps.py [--device cuda] [--methods sage mixup] [--json FILE]

A step is `accumulate` and the optimiser's step, PreActResNet18, 100 images of 3×32×32. The methods take turns in every round, and each is
compared with the plain step of its own round.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from common import environment, median_and_spread

import mixsage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", default=[name for name in mixsage.available() if name != "clean"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = mixsage.models.preactresnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)
    images, labels = torch.randn(options.batch, 3, 32, 32, device=device), torch.randint(10, (options.batch,), device=device)

    def step(mixer: mixsage.Mixer) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        mixsage.accumulate(mixer, model, images, labels)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    mixers = {name: mixsage.get(name)() for name in ["clean", *options.methods]}
    times: dict[str, list[float]] = {name: [] for name in mixers}
    for round_number in range(options.rounds + 1):
        for name, mixer in mixers.items():
            spent = step(mixer)
            if round_number:  # the first round warms up
                times[name].append(spent)
    plain = times["clean"]
    ratios = {name: median_and_spread([spent / base for spent, base in zip(values, plain, strict=True)]) for name, values in times.items()}
    print(f"{'step / plain step':<20}{'median':>8}{'5 %':>8}{'95 %':>8}{'ms':>10}")
    for name, ratio in ratios.items():
        print(f"{name:<20}{ratio['median']:>8.3f}{ratio['low']:>8.3f}{ratio['high']:>8.3f}{1e3 * median_and_spread(times[name])['median']:>10.1f}")
    record = {"ratios": ratios, "plain_ms": 1e3 * median_and_spread(plain)["median"], "batch": options.batch, **environment()}
    print(f"\n{record['machine']}, torch {record['torch']}, {record['threads']} threads, {options.rounds} rounds")
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
