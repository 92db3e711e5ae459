"""Whole steps on a CUDA device: no wait for the device, launches that do not grow with the batch, the CPU's results.

Needs neither pytest nor NumPy: ``PYTHONPATH=src python tests/test_cuda.py [words that a check's name must contain]`` prints PASS or FAIL
for each check, and the launches of each method. The checks named "graphs" are long and run only where a word asks for them.
"""

import sys
import time
import traceback
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import mixsage
from helpers import nothing_may_wait, seeded, small_model
from mixsage import (
    SAGE,
    CutMix,
    Full,
    InputGradient,
    ManifoldMixup,
    MixPlan,
    Mixup,
    NoShift,
    Paste,
    Sampled,
    ScalerHost,
    Shift,
    Uniform,
    accumulate,
)
from mixsage.models import preactresnet18
from plain_passes import Tokens, gradients

try:
    import pytest
except ModuleNotFoundError:  # on a machine that has torch alone
    pytest = None

DEVICE = "cuda"
MIXERS = {name: mixsage.get(name)() for name in mixsage.available()} | {
    "sage, half": SAGE(mixed_share=0.5),
    "sage, no reuse": SAGE(mixed_share=1.0),
    "sage, one pass": SAGE(passes=1),
    "sage, l1, eval": SAGE(saliency=InputGradient(norm="l1", mode="eval")),
    "sage, per sample": SAGE(per_sample=True),
    "sage, uniform maps": SAGE(saliency=Uniform()),
    "sage, no shift": SAGE(search=NoShift()),
    "sage, paste": SAGE(blend=Paste()),
    "sage, a tenth": SAGE(search=Sampled(0.1)),
    "sage, all shifts": SAGE(search=Full()),
    "sage, sometimes": SAGE(prob=0.5),
    "mixup, per sample": Mixup(per_sample=True),
    "cutmix, per sample": CutMix(per_sample=True),
    "manifold, hidden only": ManifoldMixup(layers=("stage1",)),
}


class Light(nn.Module):
    """A model of the same few kernels whatever the batch: libraries of convolutions choose others for other sizes."""

    def __init__(self, classes=10):
        super().__init__()
        self.stage1 = Scale(3)
        self.stage2 = Scale(3)
        self.weight = nn.Parameter(torch.randn(3, classes))

    def forward(self, images):
        features = self.stage2(self.stage1(images)).mean(dim=(2, 3))
        return (features[:, :, None] * self.weight).sum(dim=1)


class Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.factor = nn.Parameter(torch.rand(1, channels, 1, 1) + 0.5)
        self.bend = nn.Tanh()

    def forward(self, images):
        return self.bend(images * self.factor)


def batch(size, side=32, classes=10, device=DEVICE):
    generator = seeded(100)
    images = torch.randn(size, 3, side, side, generator=generator)
    return images.to(device), torch.randint(classes, (size,), generator=generator).to(device)


# ----------------------------------------------------------------------------------------------------------------- no synchronisation


def does_not_wait(name, surroundings="plain"):
    """torch's own detector of synchronisation, over a whole step with its optimiser."""
    model = preactresnet18(num_classes=10, width=16).to(DEVICE)
    images, labels = batch(64)
    host, context = None, nullcontext
    if surroundings == "scaler":
        host, context = ScalerHost(torch.amp.GradScaler("cuda")), partial(torch.autocast, "cuda", torch.float16)
    elif surroundings == "autocast":
        context = partial(torch.autocast, "cuda", torch.bfloat16)
    elif surroundings == "channels last":
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.1), seeded(0)

    def step():
        with context():
            accumulate(MIXERS[name], model, images, labels, generator=generator, host=host)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()  # libraries load what they need when they are first asked
    with nothing_may_wait():
        for _ in range(3):
            step()


def plain_call_does_not_wait(name):
    model, (images, labels) = preactresnet18(num_classes=10, width=16).to(DEVICE), batch(64)
    call = partial(MIXERS[name].__class__(num_classes=10), images, labels, model=model, generator=seeded(0))
    call()
    with nothing_may_wait():
        call()


def runs_ahead(name):
    """The host finishes its part of a step while the device still sleeps: nothing waits, whatever torch's detector knows of it.

    A device accepts only so many launches ahead, so that a step of more is measured by itself and refused with their number.
    """
    model, (images, labels) = Light().to(DEVICE), batch(64)
    step = partial(accumulate, MIXERS[name], model, images, labels)
    for seed in range(3):
        step(generator=seeded(seed))
    launches = launches_of(lambda: step(generator=seeded(1)))[0]
    if launches > 900:
        return f"not tried: {launches} launches are more than a device accepts ahead"
    torch.cuda.synchronize()
    awake, began = torch.cuda.Event(), time.perf_counter()
    torch.cuda._sleep(2_000_000_000)  # about a second
    awake.record()
    step(generator=seeded(1))
    seconds, asleep = time.perf_counter() - began, not awake.query()
    torch.cuda.synchronize()
    assert asleep, f"the step returned after {seconds:.2f} s, when the device was no longer asleep"
    return f"host done after {seconds * 1e3:.0f} ms, {launches} launches"


# --------------------------------------------------------------------------------------------------------------------------- launches

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset")


def launches_of(step):
    """How often a step launches a kernel, a copy or a fill; and how many copies come back to the host."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events()]
    back = sum(name.startswith("Memcpy DtoH") for name in names)
    return sum(name.startswith(LAUNCHES) for name in names), back


def launches_do_not_grow(name):
    """Between batches of 16 and 64, for plans of the same form: Puzzle Mix, for one, draws grids of several sizes."""
    model = Light().to(DEVICE)
    counts, back = defaultdict(lambda: defaultdict(set)), 0
    for size in (16, 64):
        images, labels = batch(size)
        accumulate(MIXERS[name], model, images, labels, generator=seeded(0))
        for seed in range(5):
            steps = []
            step = partial(accumulate, MIXERS[name], model, images, labels)
            count, copies = launches_of(lambda step=step, seed=seed, steps=steps: steps.append(step(generator=seeded(seed))))
            counts[form_of(steps[0].plan)][size].add(count)
            back += copies
    both = {form: sizes for form, sizes in counts.items() if len(sizes) == 2}
    assert both, f"no form of plan was drawn for both batches: {dict(counts)}"
    assert back == 0, f"{back} copies went back to the host"
    table = "; ".join(f"{form}: {sorted(sizes[16])} at 16, {sorted(sizes[64])} at 64" for form, sizes in both.items())
    assert all(max(sizes[64]) <= max(sizes[16]) for sizes in both.values()), table
    return table


def form_of(plan):
    masks = plan.masks if isinstance(plan.masks, torch.Tensor) else None
    mask = "boxes" if masks is None else "x".join(map(str, masks.shape[2:]))
    order = getattr(plan.warp, "order", None)
    warp = "" if plan.warp is None else f" {type(plan.warp).__name__}" + ("" if order is None else f" {order.shape[-1]}")
    return f"{plan.layer or 'input'} {mask}{warp}"


def launches_of_a_whole_step(name):
    """For the record: the number of launches of a step of PreActResNet18, and what of it is the method's."""
    model = preactresnet18(num_classes=10, width=16).to(DEVICE)
    images, labels = batch(64)
    for mixer in (MIXERS[name], mixsage.Clean()):
        accumulate(mixer, model, images, labels, generator=seeded(0))
    plain = launches_of(lambda: accumulate(mixsage.Clean(), model, images, labels, generator=seeded(0)))[0]
    whole = launches_of(lambda: accumulate(MIXERS[name], model, images, labels, generator=seeded(0)))[0]
    return f"{whole} launches, a plain step {plain}"


# ---------------------------------------------------------------------------------------------------------------- the CPU's results


@contextmanager
def exact_convolutions():
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept


def convnet():
    return small_model(classes=10)


def agrees_with_the_cpu(name, make=convnet):
    """The same choices, the same plan but for rounding, and to the same plan the same gradient."""
    mixer = MIXERS[name]
    if make is Tokens and name == "manifold, hidden only":
        mixer = ManifoldMixup(layers=("blocks.0",))
    torch.manual_seed(0)
    here = make()
    there = make().to(DEVICE)
    there.load_state_dict(here.state_dict())
    side = 16 if make is Tokens else 32
    images, labels = batch(16, side, classes=here.head.out_features, device="cpu")
    with exact_convolutions():
        one = accumulate(mixer, here, images, labels, generator=seeded(3))
        other = accumulate(mixer, there, images.to(DEVICE), labels.to(DEVICE), generator=seeded(3))
        plan = other.plan.to("cpu")
        assert other.logits.device.type == DEVICE
        assert torch.equal(one.plan.sources, plan.sources)
        assert one.plan.layer == plan.layer
        alike = shows_the_same(one.plan, plan)
        # Where two shifts keep nearly the same saliency, rounding may decide between them: seldom.
        assert alike.float().mean() >= 0.9, f"{int(alike.sum())} of {len(alike)} images are mixed as on the CPU"
        torch.testing.assert_close(other.plan.weights.cpu()[alike], one.plan.weights[alike], rtol=1e-3, atol=1e-3)
        replayed = make().to(DEVICE)
        replayed.load_state_dict(fresh(make))
        reference = make()
        reference.load_state_dict(fresh(make))
        accumulate(mixer, replayed, images.to(DEVICE), labels.to(DEVICE), plan=one.plan.to(DEVICE))
        accumulate(mixer, reference, images, labels, plan=one.plan)
    # Some gradients are zero but for rounding, such as that of a bias before a normalisation: the largest of the model tells what that may be.
    largest = max(float(gradient.abs().max()) for gradient in gradients(reference).values())
    for parameter, gradient in gradients(reference).items():
        atol = max(1e-4 * float(gradient.abs().max()), 1e-5 * largest, 1e-6)
        torch.testing.assert_close(gradients(replayed)[parameter].cpu(), gradient, rtol=1e-3, atol=atol)
    return f"{int(alike.sum())} of {len(alike)} images mixed alike"


def fresh(make):
    torch.manual_seed(0)
    return make().state_dict()


def shows_the_same(one: MixPlan, other: MixPlan):
    """Which images two plans mix alike but for rounding."""
    alike = (one.dense_masks() - other.dense_masks()).abs().amax(dim=(1, 2, 3)) < 1e-2
    if isinstance(one.warp, Shift):
        alike &= (one.warp.offsets == other.warp.offsets).flatten(1).all(dim=1)
    elif one.warp is not None:
        alike &= (one.warp.order == other.warp.order).flatten(1).all(dim=1)
    return alike


def without_reuse_no_gradient_of_a_parameter():
    model, (images, labels) = small_model(classes=10).to(DEVICE), batch(16)
    arrived = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda _, name=name: arrived.append(name))
    accumulate(SAGE(mixed_share=1.0), model, images, labels)
    assert sorted(arrived) == sorted(dict(model.named_parameters()))


def an_infinite_gradient_reaches_the_scaler(name):
    model, (images, labels) = small_model(classes=10).to(DEVICE), batch(16)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    host, optimizer = ScalerHost(torch.amp.GradScaler("cuda", init_scale=2.0**60)), torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda", torch.float16):
        step = accumulate(MIXERS[name], model, images, labels, host=host, generator=seeded(3))
    assert step.plan.weights.isfinite().all()
    host.scaler.step(optimizer)
    host.scaler.update()
    assert host.scaler.get_scale() == 2.0**59
    assert all(torch.equal(value, before[key]) for key, value in model.named_parameters())


def a_hidden_layer_is_mixed_again_in_backward():
    """Backward runs in a thread of its own here, and so does what activation checkpointing runs again."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inner = small_model(classes=10)
            self.reentrant = reentrant

        def forward(self, images):
            maps = self.inner.stem(images)
            for part in (self.inner.stage1, self.inner.stage2):
                maps = checkpoint(part, maps, use_reentrant=self.reentrant)
            return self.inner.head(maps.mean(dim=(2, 3)))

    images, labels = batch(16)
    plain = small_model(classes=10).to(DEVICE)
    with exact_convolutions():
        step = accumulate(ManifoldMixup(layers=("stage1",)), plain, images, labels, generator=seeded(3))
        for reentrant in (False, True):
            model = Checkpointed(reentrant).to(DEVICE)
            accumulate(ManifoldMixup(layers=("inner.stage1",)), model, images, labels, generator=seeded(3))
            for parameter, gradient in gradients(plain).items():
                torch.testing.assert_close(gradients(model.inner)[parameter], gradient, rtol=1e-3, atol=1e-5)
    assert step.plan.layer == "stage1"


# ------------------------------------------------------------------------------------------------------------------ compiled models


def compiled_as_graphs(name, *, allocated):
    """A model that is replayed as CUDA graphs, whose tensors the next replay overwrites: a few steps as the plain model takes them.

    With ``allocated`` the gradients keep memory of their own (`zero_grad(set_to_none=False)`), as two passes that add up need.
    """
    images, labels = batch(16)
    plain, model = small_model(classes=10).to(DEVICE), small_model(classes=10).to(DEVICE)
    run = torch.compile(model, mode="reduce-overhead")
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.05) for part in (plain, model)]
    if allocated:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    with exact_convolutions():
        for seed in range(6):
            step = accumulate(MIXERS[name], run, images, labels, generator=seeded(seed))
            float(step.loss)
            accumulate(MIXERS[name], plain, images, labels, plan=step.plan)
            for parameter, gradient in gradients(plain).items():
                torch.testing.assert_close(gradients(model)[parameter], gradient, rtol=1e-2, atol=1e-3)
            for optimizer in optimizers:
                optimizer.step()
            optimizers[0].zero_grad()
            optimizers[1].zero_grad(set_to_none=not allocated)
            model.load_state_dict(plain.state_dict())


# ------------------------------------------------------------------------------------------------------------------------- running

CHECKS = {
    **{f"does not wait: {name}": partial(does_not_wait, name) for name in MIXERS},
    **{
        f"does not wait, {surroundings}: {name}": partial(does_not_wait, name, surroundings)
        for surroundings in ("scaler", "autocast", "channels last")
        for name in ("sage", "sage, no reuse", "cutmix", "manifold")
    },
    **{f"plain call does not wait: {name}": partial(plain_call_does_not_wait, name) for name in mixsage.available()},
    **{f"runs ahead: {name}": partial(runs_ahead, name) for name in MIXERS},
    **{f"launches do not grow: {name}": partial(launches_do_not_grow, name) for name in MIXERS if name != "sage, sometimes"},
    **{f"launches of a step: {name}": partial(launches_of_a_whole_step, name) for name in mixsage.available()},
    **{f"agrees with the cpu: {name}": partial(agrees_with_the_cpu, name) for name in MIXERS},
    **{f"agrees with the cpu, vit: {name}": partial(agrees_with_the_cpu, name, Tokens) for name in MIXERS},
    "without reuse no gradient of a parameter": without_reuse_no_gradient_of_a_parameter,
    **{f"overflow: {name}": partial(an_infinite_gradient_reaches_the_scaler, name) for name in MIXERS if name != "sage, sometimes"},
    "a hidden layer is mixed again in backward": a_hidden_layer_is_mixed_again_in_backward,
}
GRAPHS = {
    f"graphs, {name}{', gradients allocated' if allocated else ''}": partial(compiled_as_graphs, name, allocated=allocated)
    for name, allocated in (("mixup", False), ("sage, no reuse", False), ("sage", True))
}

if pytest is not None:

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    @pytest.mark.parametrize("name", CHECKS)
    def test_on_a_gpu(name):
        CHECKS[name]()

    @pytest.mark.gpu
    @pytest.mark.slow
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    @pytest.mark.parametrize("name", GRAPHS)
    def test_as_graphs(name):
        GRAPHS[name]()


def main(words):
    """Run the checks whose names hold all the words; exit with 1 if one fails."""
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    chosen = [name for name in CHECKS | GRAPHS if all(word in name for word in words) and (words or name in CHECKS)]
    failures = 0
    for name in chosen:
        try:
            said = (CHECKS | GRAPHS)[name]()
            print(f"PASS  {name}" + (f"  ({said})" if said else ""), flush=True)
        except Exception as error:  # noqa: BLE001  # each check is reported, and the others run
            failures += 1
            where = [frame for frame in traceback.extract_tb(error.__traceback__) if "/mixsage/" in frame.filename][-1:]
            place = f" at {where[0].filename.rpartition('/mixsage/')[2]}:{where[0].lineno} {where[0].line}" if where else ""
            print(f"FAIL  {name}: {type(error).__name__}: {' '.join(str(error).split())[:400]}{place}", flush=True)
    print(f"{len(chosen) - failures} of {len(chosen)} checks passed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
