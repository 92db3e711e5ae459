"""Mixing a hidden layer of a model that is wrapped or compiled, as a whole, in place or in part."""

import logging

import pytest
import torch
from torch import nn

import mixsage
from helpers import seeded, small_model
from mixsage import ManifoldMixup, accumulate, hidden
from mixsage.hidden import find_stages, layers_of
from plain_passes import assert_gradients, plain_passes, precise


def batch(size=4, side=16, dtype=torch.float32):
    generator = seeded(100)
    images = torch.randn(size, 3, side, side, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(5, (size,), generator=generator)


def hooked(model):
    """The modules that carry a hook of any kind."""
    return [
        name
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._forward_hooks_with_kwargs
    ]


def test_names_are_those_of_the_model_whatever_wraps_it():
    model = small_model()
    compiled = torch.compile(model, backend="eager")
    names = layers_of(model).keys()
    assert layers_of(compiled).keys() == names
    assert layers_of(nn.DataParallel(model)).keys() == names
    assert find_stages(compiled) == ["stage1", "stage2"]
    model.stage1 = torch.compile(model.stage1, backend="eager")
    assert layers_of(model).keys() == names
    assert find_stages(model) == ["stage1", "stage2"]


@pytest.fixture
def warnings_once(caplog):
    """The library's log, with what is said once a process forgotten."""
    hidden._say_uncompiled.cache_clear()
    caplog.set_level(logging.WARNING, logger="mixsage")
    return caplog


def compiled_whole(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_in_part(model):
    model.stage1 = torch.compile(model.stage1, backend="eager")
    return model


# torch's compiler looks at `.grad` of a hidden value when it starts in the middle of a model, and hides the warning only where it is printed.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("how", [compiled_whole, compiled_in_place, compiled_in_part])
@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "called before"])
def test_a_compiled_model_is_mixed_as_the_original(how, warm, warnings_once):
    images, labels = batch(dtype=torch.float64)
    model, alone = small_model().double(), small_model().double()
    run = how(model)
    if warm:
        accumulate(mixsage.Mixup(), run, images, labels, criterion=precise)
        model.zero_grad()
    steps = [
        accumulate(ManifoldMixup(layers=("stage1",)), run, images, labels, criterion=precise, generator=seeded(3)) for _ in "ab"
    ]
    assert [record.name for record in warnings_once.records] == ["mixsage"]
    assert "runs the model uncompiled for that pass" in warnings_once.text
    # BatchNorm normalises by the batch: two steps leave twice the gradient.
    expected = plain_passes(alone, images, labels, steps[0].plan, precise).mixed
    names = dict(model.named_parameters())
    assert_gradients(model, {name: 2 * tensor for name, tensor in zip(names, expected.values(), strict=True)})
    assert hooked(model) == []


def test_a_compiled_model_is_compiled_again_after_a_hidden_step():
    calls = []

    def backend(graph, _inputs):
        def run(*inputs):
            calls.append("compiled")
            return graph.forward(*inputs)

        return run

    model, (images, labels) = torch.compile(small_model(), backend=backend), batch()
    for mixer, expected in ((mixsage.Mixup(), 1), (ManifoldMixup(layers=("stage1",)), 1), (mixsage.Mixup(), 2)):
        accumulate(mixer, model, images, labels)
        assert len(calls) == expected


def test_an_uncompiled_model_says_nothing(warnings_once):
    images, labels = batch()
    accumulate(ManifoldMixup(layers=("stage1",)), small_model(), images, labels)
    assert not warnings_once.records


def test_a_forward_compiled_by_itself_is_refused_rather_than_left_unmixed():
    model, (images, labels) = small_model(), batch()
    model.forward = torch.compile(model.forward, backend="eager")
    model(images)
    with pytest.raises(RuntimeError, match=r"did not run in this pass.*compile with model.compile\(\)"):
        accumulate(ManifoldMixup(layers=("stage1",)), model, images, labels)
