"""Few-shot classification of classes that the network was not trained on: nearest prototype over frozen features."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mixsage.evaluation.features import Features, features
from mixsage.evaluation.pixels import Loader


def fewshot(
    model: nn.Module,
    loader: Loader,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    tasks: int = 1000,
    generator: Generator | None = None,
) -> dict[str, float]:
    """`prototype_accuracy` of the model's features over random tasks: ``accuracy`` and ``interval``, in per cent.

    Args:
        model: from pixels in [0, 1] to logits; its last linear layer is left out.
        loader: images of the novel classes, and their labels.
        ways: classes in a task.
        shots: labelled images of each class.
        queries: images of each class that are to be classified.
        tasks: how many tasks.
        generator: a CPU generator of the tasks; torch's default one if left out.
    """
    return prototype_accuracy(features(model, loader), ways=ways, shots=shots, queries=queries, tasks=tasks, generator=generator)


def prototype_accuracy(
    data: Features, *, ways: int = 5, shots: int = 1, queries: int = 15, tasks: int = 1000, generator: Generator | None = None
) -> dict[str, float]:
    """Mean accuracy over random tasks (``accuracy``) and half the width of its 95 % interval (``interval``), in per cent.

    In a task, each class is the mean of its labelled features, and a query belongs to the class with the most similar mean, by the cosine.
    Features are computed once and may serve many settings.

    Example:
        >>> vectors, labels = torch.eye(8).repeat(20, 1), torch.arange(8).repeat(20)
        >>> prototype_accuracy(Features(vectors, labels), ways=5, shots=1, tasks=10)
        {'accuracy': 100.0, 'interval': 0.0}
    """
    if shots < 1 or queries < 1:
        raise ValueError(f"a task needs at least 1 shot and 1 query a class, got {shots} and {queries}")
    pool = _by_class(data.labels, ways=ways, wanted=shots + queries)
    if tasks < 2:
        raise ValueError(f"an interval needs at least 2 tasks, got {tasks}")
    found = []
    for size in _parts(tasks, pool.shape[1] * ways):
        chosen = _draw(pool, size, ways, shots + queries, generator)
        found.append(_solve(data.vectors[chosen], shots))
    accuracy = torch.cat(found).double()
    half_width = NormalDist().inv_cdf(0.975) * float(accuracy.std()) / tasks**0.5
    return {"accuracy": 100 * float(accuracy.mean()), "interval": 100 * half_width}


def _by_class(labels: Tensor, *, ways: int, wanted: int) -> Tensor:
    """[classes, most] rows of each class's images, filled up with -1."""
    classes, counts = torch.unique(labels, return_counts=True)
    if ways < 2 or len(classes) < ways:
        raise ValueError(f"tasks of {ways} classes need 2 ≤ {ways} ≤ the number of classes, and the data has {len(classes)}")
    if int(counts.min()) < wanted:
        raise ValueError(
            f"a task needs {wanted} images of a class (shots and queries); class {int(classes[counts.argmin()])} has {int(counts.min())}"
        )
    pool = torch.full((len(classes), int(counts.max())), -1)
    for row, (label, count) in enumerate(zip(classes, counts, strict=True)):
        pool[row, :count] = (labels == label).nonzero()[:, 0]
    return pool


def _draw(pool: Tensor, tasks: int, ways: int, wanted: int, generator: Generator | None) -> Tensor:
    """[tasks, ways, wanted] rows: classes without repetition, and of each class images without repetition."""
    classes = torch.rand(tasks, len(pool), generator=generator).topk(ways, dim=1).indices
    rows = pool[classes]
    order = torch.rand(rows.shape, generator=generator).masked_fill_(rows < 0, -1)
    return rows.gather(2, order.topk(wanted, dim=2).indices)


def _solve(vectors: Tensor, shots: int) -> Tensor:
    """The accuracy [tasks] of each task, from its vectors [tasks, ways, shots + queries, D]."""
    tasks, ways, images, size = vectors.shape
    prototypes = functional.normalize(vectors[:, :, :shots].mean(dim=2), dim=-1)
    # The length of a query does not change which prototype is nearest.
    queries = vectors[:, :, shots:].reshape(tasks, -1, size)
    nearest = torch.bmm(queries, prototypes.transpose(1, 2)).argmax(dim=2)
    truth = torch.arange(ways, device=nearest.device).repeat_interleave(images - shots)
    return (nearest == truth).float().mean(dim=1)


def _parts(tasks: int, cost: int) -> list[int]:
    """Tasks in parts that keep the random numbers of a part, and its vectors, in a modest memory."""
    size = max(1, min(100, 20_000_000 // cost))
    return [min(size, tasks - start) for start in range(0, tasks, size)]
