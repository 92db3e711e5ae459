"""Loops that Fabric or Accelerate own: the steps of the raw loop, in their precisions and with their accumulation."""

import pytest
import torch
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState, GradientState
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision

from helpers import seeded
from mixsage import SAGE, ManifoldMixup, ScalerHost, accumulate
from mixsage.integrations.accelerate import AccelerateHost
from mixsage.integrations.fabric import FabricHost
from raw_loop import MIXERS, SEED, assert_same, batches, network, raw_loop, sgd

WITH_HIDDEN = MIXERS | {"manifold": ManifoldMixup()}


@pytest.fixture(autouse=True)
def _fresh_state():
    """An Accelerator's settings are shared by all of a process, until they are reset."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(mixer, model, optimizer, host, *, data=None, step=None):
    generator = seeded(SEED)
    for images, labels in data or batches():
        accumulate(mixer, model, images, labels, host=host, generator=generator)
        (step or optimizer.step)()
        optimizer.zero_grad()


def half_precision(mixer):
    """The raw loop in float16."""
    model, generator = network(), seeded(SEED)
    optimizer, host = sgd(model), ScalerHost(torch.amp.GradScaler("cpu", init_scale=256.0))
    for images, labels in batches():
        with torch.autocast("cpu", dtype=torch.float16):
            accumulate(mixer, model, images, labels, host=host, generator=generator)
        host.scaler.step(optimizer)
        host.scaler.update()
        optimizer.zero_grad()
    return model


# -------------------------------------------------------------------------------------------------------------------------- Fabric


@pytest.mark.parametrize("name", WITH_HIDDEN)
def test_fabric(name):
    fabric, original = Fabric(accelerator="cpu", devices=1), network()
    model, optimizer = fabric.setup(original, sgd(original))
    train(WITH_HIDDEN[name], model, optimizer, FabricHost(fabric, model))
    assert_same(original, raw_loop(WITH_HIDDEN[name]))


@pytest.mark.parametrize("share", [0.7, 1.0])
def test_fabric_in_half_precision(share):
    mixer = SAGE(mixed_share=share)
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))
    fabric, original = Fabric(accelerator="cpu", devices=1, plugins=[precision]), network()
    model, optimizer = fabric.setup(original, sgd(original))
    train(mixer, model, optimizer, FabricHost(fabric, model))
    # Fabric rounds the pictures to float16 before the model sees them; autocast rounds them inside. Both see the same numbers.
    assert_same(original, half_precision(mixer))


# ---------------------------------------------------------------------------------------------------------------------- Accelerate


@pytest.mark.parametrize("name", WITH_HIDDEN)
def test_accelerate(name):
    accelerator, original = Accelerator(cpu=True), network()
    model, optimizer = accelerator.prepare(original, sgd(original))
    train(WITH_HIDDEN[name], model, optimizer, AccelerateHost(accelerator))
    assert_same(original, raw_loop(WITH_HIDDEN[name]))


def test_accelerate_accumulates():
    accelerator, original = Accelerator(cpu=True, gradient_accumulation_steps=2), network()
    model, optimizer = accelerator.prepare(original, sgd(original))
    generator = seeded(SEED)
    for images, labels in batches(6):
        with accelerator.accumulate(model):
            accumulate(SAGE(), model, images, labels, host=AccelerateHost(accelerator), generator=generator)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(original, raw_loop(SAGE(), data=batches(6), every=2))


@pytest.mark.parametrize("share", [0.7, 1.0])
def test_accelerate_with_a_scaler(share):
    """An Accelerator has no float16 on a CPU; a scaler of its kind in its place shows that losses go through it."""
    accelerator, original = Accelerator(cpu=True), network()
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    model = accelerator.prepare(original)
    optimizer = sgd(original)
    step = lambda: (accelerator.scaler.step(optimizer), accelerator.scaler.update())  # noqa: E731
    train(SAGE(mixed_share=share), model, optimizer, AccelerateHost(accelerator), step=step)
    assert_same(original, raw_loop(SAGE(mixed_share=share)))


def test_accelerate_in_bfloat16():
    accelerator, original = Accelerator(cpu=True, mixed_precision="bf16"), network()
    model, optimizer = accelerator.prepare(original, sgd(original))
    train(SAGE(), model, optimizer, AccelerateHost(accelerator))
    expected = network()
    expected_optimizer, generator = sgd(expected), seeded(SEED)
    for images, labels in batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            accumulate(SAGE(), expected, images, labels, generator=generator)
        expected_optimizer.step()
        expected_optimizer.zero_grad()
    assert_same(original, expected)


@pytest.mark.parametrize("kind", [DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM])
def test_engines_with_gradients_of_their_own_are_refused(kind):
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = kind
    with pytest.raises(ValueError, match=f"{kind.value} keeps gradients in buffers of its own"):
        AccelerateHost(accelerator)
