"""What a step costs is measured on a copy, in turn with plain steps."""

import pytest
import torch

import mixsage
from mixsage import data
from mixsage.evaluation import runtime as module
from mixsage.evaluation.pixels import Normalised
from mixsage.evaluation.runtime import evaluation_cost, runtime
from mixsage.evaluation.splits import Pixels


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(8, 1, 16, 16, generator=generator), torch.arange(8) % 4


def test_the_ratio_is_that_of_the_medians(monkeypatch):
    # A clock that says how long each step took, in the order in which they are timed: plain, mixed, plain, mixed, …
    durations = iter([9.0, 9.0, 1.0, 2.5, 1.2, 2.0, 50.0, 2.4])
    now = [0.0]

    def timed(work, device):
        work()
        now[0] += 1
        return next(durations)

    monkeypatch.setattr(module, "_timed", timed)
    model = mixsage.models.small_convnet(num_classes=4, width=4)
    found = runtime(mixsage.Mixup(), model, *batch(), steps=3, warmup=1)
    assert now[0] == 8
    assert found == {"seconds": 2.4, "plain": 1.2, "ratio": pytest.approx(2.0)}


def test_the_model_stays_as_it_was():
    model = mixsage.models.small_convnet(num_classes=4, width=4).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = runtime(mixsage.SAGE(), model, *batch(), steps=2, warmup=1, generator=torch.Generator().manual_seed(0))
    assert found["seconds"] > 0
    assert found["ratio"] == pytest.approx(found["seconds"] / found["plain"])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_two_passes_take_longer_than_one():
    model = mixsage.models.preactresnet18(num_classes=4, width=8, in_channels=1)
    found = runtime(mixsage.SAGE(search=mixsage.NoShift()), model, *batch(), steps=5, generator=torch.Generator().manual_seed(0))
    assert found["ratio"] > 1.3


def test_steps_must_be_there():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        runtime(mixsage.Mixup(), mixsage.models.small_convnet(), *batch(), steps=0)


def test_the_cost_of_an_evaluation_is_in_forward_passes(monkeypatch):
    # Seconds of forward, clean scores, everything; a round to warm up and two that count.
    durations = iter([9.0, 9.0, 9.0, 1.0, 1.5, 5.0, 2.0, 2.0, 11.0])

    def timed(work, device):
        work()
        return next(durations)

    monkeypatch.setattr(module, "_timed", timed)
    model = Normalised(mixsage.models.small_convnet(num_classes=4, width=4), mean=(0.5,), std=(0.25,))
    found = evaluation_cost(model, [batch()], rounds=2, generator=torch.Generator())
    assert found == {"forward": 1.5, "evaluate": pytest.approx((5 + 5.5) / 2), "perturbations": pytest.approx((3.5 + 4.5) / 2)}
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        evaluation_cost(model, [batch()], rounds=0)


@pytest.mark.slow
def test_an_evaluation_costs_less_than_eight_forward_passes():
    sample = data.load("sample")
    model = Normalised(mixsage.models.preactresnet18(num_classes=10, width=8, in_channels=1), mean=sample.mean, std=sample.std)
    assert evaluation_cost(model, Pixels(sample.test, sample), rounds=3)["evaluate"] < 8
