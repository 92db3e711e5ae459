"""Records of studies that never were, for the tests of reports."""

import math

import numpy as np

from mixsage.study.records import Record

ARMS = {
    "clean": ("clean", 77.8, 61.0, 200),
    "mixup": ("mixup", 79.1, 63.5, 203),
    "cutmix": ("cutmix", 77.9, 55.0, 204),
    "manifold": ("manifold", 78.8, 62.0, 207),
    "saliencymix": ("saliencymix", 78.2, 57.0, 210),
    "puzzlemix": ("puzzlemix", 79.3, 59.5, 530),
    "comixup": ("comixup", 79.7, 58.0, 1500),
    "sage": ("sage", 80.6, 62.5, 410),
    "SAGE, uniform maps": ("SAGE(saliency=Uniform())", 79.8, 61.5, 405),
    "no mixing, twice the steps": ("clean", 79.8, 61.3, 400),
}
"""Arm: method, accuracy, OOD score, seconds."""


def study(seeds=3, *, data="cifar10", model="preactresnet18", settings=None, arms=ARMS, shift=0.0):
    """A study of these arms, the noise of a seed shared by its arms."""
    draw = np.random.default_rng(0)
    shared = draw.normal(0, 0.3, seeds)
    found = []
    for arm, (method, accuracy, ood, seconds) in arms.items():
        for seed in range(seeds):
            last = accuracy + shift + shared[seed] + draw.normal(0, 0.15)
            history = [
                {"epoch": epoch, "train_loss": 2.3 * math.exp(-epoch / 15), "test_top1": last * (1 - 0.6 * math.exp(-epoch / 8))}
                for epoch in range(1, 61)
            ]
            found.append(
                Record(
                    run=f"{data}-{model}-{arm}-s{seed}",
                    arm=arm,
                    data=data,
                    model=model,
                    seed=seed,
                    epochs=120 if "twice" in arm else 60,
                    method=method,
                    settings={
                        "data": data,
                        "model": model,
                        "width": None,
                        "per_class": None,
                        "lr": 0.2,
                        "milestones": [100, 200],
                        **(settings or {}),
                    },
                    metrics={
                        "last": last,
                        "best": last + 0.4,
                        "median_of_last_ten": last - 0.1,
                        "top5": 98.0 + draw.normal(0, 0.1),
                        "nll": 0.8 + draw.normal(0, 0.01),
                        "ece": 6.0 + draw.normal(0, 0.3),
                        "gaussian": ood + 4 + draw.normal(0, 0.4),
                        "fgsm": ood - 6 + draw.normal(0, 0.4),
                        "fgm": ood + 2 + draw.normal(0, 0.4),
                        "ood": ood + draw.normal(0, 0.4),
                        "seconds": seconds * (1 + 0.01 * seed),
                        "images_per_second": 3e5 / seconds,
                    },
                    history=history,
                    versions={"mixsage": "0.1.0", "torch": "2.15.0"},
                    machine={"system": "Linux", "cores": 2},
                    commit="0123456789ab",
                    finished="2026-01-02T03:04:05+00:00",
                )
            )
    return found
