"""Few-shot tasks against a loop that does one task at a time, and features computed once."""

import time

import pytest
import torch
from torch import nn

from evaluation_models import MEAN, STD, loader
from mixsage.evaluation import fewshot as module
from mixsage.evaluation.features import Features, features
from mixsage.evaluation.fewshot import fewshot, prototype_accuracy
from mixsage.evaluation.pixels import Normalised
from mixsage.models import preactresnet18, small_convnet


def clouds(classes=8, per_class=40, size=16, spread=1.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, size, generator=generator)
    labels = torch.arange(classes).repeat(per_class) * 3 + 7  # labels need not count from 0
    vectors = centres.repeat(per_class, 1) + spread * torch.randn(classes * per_class, size, generator=generator)
    return Features(vectors, labels)


def by_loop(data, rows, shots):
    """One task, written out."""
    correct = total = 0
    prototypes = [torch.stack([data.vectors[row] for row in of_class[:shots]]).mean(dim=0) for of_class in rows]
    for own, of_class in enumerate(rows):
        for row in of_class[shots:]:
            query = data.vectors[row]
            cosines = [float(query @ p / (query.norm() * p.norm())) for p in prototypes]
            correct += cosines.index(max(cosines)) == own
            total += 1
    return correct / total


@pytest.mark.parametrize("shots", [1, 5])
def test_vectorised_tasks_agree_with_a_loop(shots):
    data = clouds()
    pool = module._by_class(data.labels, ways=5, wanted=shots + 15)
    rows = module._draw(pool, 20, 5, shots + 15, torch.Generator().manual_seed(1))
    found = module._solve(data.vectors[rows], shots)
    expected = torch.tensor([by_loop(data, task.tolist(), shots) for task in rows])
    torch.testing.assert_close(found, expected)
    assert 0.3 < float(found.mean()) < 0.99


def test_tasks_are_drawn_without_repetition_from_all_classes_and_images():
    labels = torch.tensor([0] * 20 + [1] * 17 + [2] * 30 + [5] * 16)
    pool = module._by_class(labels, ways=3, wanted=16)
    rows = module._draw(pool, 400, 3, 16, torch.Generator().manual_seed(0))
    assert rows.min() >= 0
    of_class = labels[rows]
    assert (of_class == of_class[:, :, :1]).all()  # a row of a task is of one class
    assert all(len(set(task[:, 0].tolist())) == 3 for task in of_class)
    assert all(len(set(images.tolist())) == 16 for task in rows for images in task)
    assert len(rows.unique()) == len(labels)
    shares = of_class[:, :, 0].flatten().bincount()[[0, 1, 2, 5]] / 1200
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.04, rtol=0)


def test_interval_is_that_of_the_mean_over_tasks():
    data = clouds()
    found = prototype_accuracy(data, tasks=250, generator=torch.Generator().manual_seed(2))
    pool = module._by_class(data.labels, ways=5, wanted=16)
    generator = torch.Generator().manual_seed(2)
    tasks = torch.cat(
        [module._solve(data.vectors[module._draw(pool, size, 5, 16, generator)], 1) for size in (100, 100, 50)]
    ).double()
    assert found["accuracy"] == pytest.approx(100 * float(tasks.mean()))
    assert found["interval"] == pytest.approx(100 * 1.959964 * float(tasks.std()) / 250**0.5)


def test_more_shots_help_and_chance_is_chance():
    data = clouds()
    one, five = (prototype_accuracy(data, shots=shots, tasks=200, generator=torch.Generator().manual_seed(0)) for shots in (1, 5))
    assert five["accuracy"] > one["accuracy"] + one["interval"]
    noise = clouds(spread=1e6)
    chance = prototype_accuracy(noise, tasks=400, generator=torch.Generator().manual_seed(0))
    assert chance["accuracy"] == pytest.approx(20, abs=3 * chance["interval"])


def test_a_thousand_tasks_are_quick():
    generator = torch.Generator().manual_seed(0)
    data = Features(torch.randn(20 * 600, 640, generator=generator), torch.arange(20).repeat(600))
    start = time.process_time()
    prototype_accuracy(data, shots=5, tasks=1000, generator=generator)
    assert time.process_time() - start < 20  # far above what it takes: a loop over tasks and images would need minutes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ways": 9}, "the data has 8"),
        ({"ways": 1}, "tasks of 1 classes"),
        ({"shots": 30}, r"needs 45 images of a class .* class 7 has 40"),
        ({"tasks": 1}, "at least 2 tasks, got 1"),
    ],
)
def test_impossible_tasks(options, message):
    with pytest.raises(ValueError, match=message):
        prototype_accuracy(clouds(), **options)


class WithLinearInside(nn.Module):
    """A stranger's network: linear layers inside, and one at its end."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))

    def forward(self, images):
        return self.classifier(self.inner(images.mean(dim=1).flatten(1)).relu())


def test_features_of_any_network():
    pixels = torch.rand(5, 3, 2, 2)
    network = WithLinearInside()
    found = features(Normalised(network, mean=MEAN, std=STD), loader(pixels, torch.arange(5), 2))
    normalised = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(found.vectors, network.inner(normalised.mean(dim=1).flatten(1)).relu().detach())
    assert found.labels.tolist() == [0, 1, 2, 3, 4]
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_features_of_ours_are_what_the_head_sees():
    network = preactresnet18(num_classes=3, width=4)
    pixels = torch.rand(3, 3, 16, 16)
    found = features(network, loader(pixels, torch.arange(3)))
    network.eval()
    torch.testing.assert_close(network.head(found.vectors), network(pixels))


def test_features_of_timm_models():
    timm = pytest.importorskip("timm")
    network = timm.create_model("resnet10t.c3_in1k", num_classes=7, pretrained=False).eval()
    pixels = torch.rand(2, 3, 32, 32)
    found = features(network, loader(pixels, torch.arange(2)))
    torch.testing.assert_close(network.get_classifier()(found.vectors), network(pixels))


def test_a_network_without_a_last_linear_layer():
    with pytest.raises(ValueError, match="no linear layer at its end; give it a method features"):
        features(nn.Sequential(nn.Flatten()), loader(torch.rand(2, 1, 2, 2), torch.arange(2)))


def test_the_images_pass_once():
    network = small_convnet(num_classes=5, in_channels=1, width=4)
    passes = []
    handle = network.stage1.register_forward_hook(lambda *_: passes.append(1))
    images, labels = torch.rand(100, 1, 8, 8), torch.arange(100) % 5
    found = fewshot(network, loader(images, labels, 40), ways=3, shots=2, tasks=50, generator=torch.Generator().manual_seed(0))
    handle.remove()
    assert len(passes) == 3
    assert set(found) == {"accuracy", "interval"}
