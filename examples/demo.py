"""Train a small network on the embedded sample without mixing and with SAGE, compare the two, and draw what every method does.

python examples/demo.py      about two minutes on two cores; the pictures and both runs lie in runs/demo
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import mixsage
from mixsage.evaluation.judge import Subject, judge
from mixsage.evaluation.preview import drawings
from mixsage.reports import figures, published
from mixsage.training import Config, RunFolder, progress, train, with_settings

SETTINGS = {
    "data": "sample",
    "val_share": 0.0,
    "model": "small_convnet",
    "width": 16,
    "lr": 0.2,
    "schedule": "onecycle",
    "warmup": 0.15,
    "workers": 0,
    "device": "cpu",
    "loggers": [],
}
"""Of both runs, which differ in nothing but the method."""
ARMS = {"no mixing": "clean", "SAGE": "sage"}
COLUMNS = {"top1": "clean images", "gaussian": "with noise"}
"""Accuracies that are compared, as `mixsage evaluate` names them; the noise has variance 0.01."""

PICTURES = ("gallery", "pipeline")
"""Of those that `mixsage preview` draws."""


def run(out: Path, method: str, *, epochs: int, seed: int, **more: object) -> RunFolder:
    """Train from the beginning; what an earlier demo left in the folder makes way."""
    if RunFolder(out).description.exists():
        shutil.rmtree(out)
    settings = {**SETTINGS, "method": method, "epochs": epochs, "eval_every": 5, "seed": seed, "out": out, **more}
    return train(with_settings(Config(), settings), progress=progress.for_stream())


def compare(runs: dict[str, RunFolder]) -> str:
    """Accuracies on the test images and training time, as a table."""
    lines = [f"{'':<12}" + "".join(f"{title:>15}" for title in (*COLUMNS.values(), "seconds"))]
    for name, folder in runs.items():
        found = judge(Subject(target=str(folder.path)))
        cells = [*(f"{found[metric]:.1f} %" for metric in COLUMNS), f"{folder.history()[-1]['total_seconds']:.0f}"]
        lines.append(f"{name:<12}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def demo(out: Path, *, epochs: int, seed: int = 0, **more: object) -> list[Path]:
    """Both runs, the table, and the pictures, whose files are returned."""
    runs = {}
    for name, method in ARMS.items():
        print(f"\n{name}", flush=True)
        runs[name] = run(out / method, method, epochs=epochs, seed=seed, **more)
    print(f"\nTest accuracy, and training time:\n\n{compare(runs)}\n")
    methods = sorted(set(mixsage.available()) - {"clean"}, key=lambda name: published.order(published.title("methods", name)))
    drawn = drawings(run=runs["SAGE"].path, methods=methods, seed=seed)
    return [figures.save(one.figure, out / f"{one.name}.png") for one in drawn if one.name in PICTURES]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs and pictures [runs/demo]")
    parser.add_argument("--epochs", type=int, default=30, help="of each run [30]")
    parser.add_argument("--seed", type=int, default=0, help="of both runs [0]")
    options = parser.parse_args()
    pictures = demo(options.out, epochs=options.epochs, seed=options.seed)
    print("What each method makes of the same pairs of images, and how SAGE works:\n")
    for picture in pictures:
        print(f"  {picture}")
