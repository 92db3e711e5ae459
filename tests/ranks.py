"""What each of the processes of test_distributed.py does: all `SCENARIOS`, each one's findings saved.

Run as a script, with its rank and a folder, this file is one of the processes.
"""

import sys
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import mixsage
from helpers import seeded, small_model
from mixsage import SAGE, Clean, CutMix, Host, InputGradient, ManifoldMixup, ScalerHost, accumulate
from plain_passes import Tokens, precise
from processes import leave

WORLD = 2
BATCH = 8
MIXERS = {name: mixsage.get(name)() for name in mixsage.available()} | {
    "sage, half": SAGE(mixed_share=0.5),
    "sage, no reuse": SAGE(mixed_share=1.0),
    "sage, eval": SAGE(saliency=InputGradient(mode="eval")),
    "sage, one pass": SAGE(passes=1),
    "manifold, hidden only": ManifoldMixup(layers=("stage1",)),
}

# ------------------------------------------------------------------------------------------------------------ what a process does


def bare(norm=False):
    return small_model(norm=norm).double()


def batch(rank=None, size=BATCH):
    """The whole batch, or the part of one process."""
    generator = seeded(100)
    images = torch.randn(size, 3, 16, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (size,), generator=generator)
    if rank is None:
        return images, labels
    part = slice(rank * size // WORLD, (rank + 1) * size // WORLD)
    return images[part], labels[part]


class Reductions:
    """A communication hook that counts, beside reducing as DistributedDataParallel does by itself."""

    def __init__(self, model):
        self.count = 0
        model.register_comm_hook(None, self._reduce)

    def _reduce(self, _state, bucket):
        self.count += 1
        future = distributed.all_reduce(bucket.buffer().div_(WORLD), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])


def parallel(model, **options):
    model = DistributedDataParallel(model, **options)
    return model, Reductions(model)


def gradients(model):
    return {name.removeprefix("module."): parameter.grad.clone() for name, parameter in model.named_parameters()}


def saved(plan):
    """A plan as plain tensors, which need no pickle."""
    warp = {} if plan.warp is None else {type(plan.warp).__name__: vars(plan.warp)}
    return {"sources": plan.sources, "masks": plan.dense_masks(), "weights": plan.weights, "layer": plan.layer, "warp": warp}


def gradients_of(name, rank):
    model, reductions = parallel(bare())
    step = accumulate(MIXERS[name], model, *batch(rank), criterion=precise, generator=seeded(3))
    return {"plan": saved(step.plan), "gradients": gradients(model), "reductions": reductions.count}


def reductions_of_three_steps(rank, mixer=SAGE(), wrap=None, host=None, make=bare, **options):  # noqa: B008  # a frozen value
    model, reductions = parallel(make(), **options)
    run, host = wrap(model) if wrap else model, host and host(model)
    optimizer, counts = torch.optim.SGD(model.parameters(), lr=0.1), []
    if options.get("static_graph"):
        with pytest.raises(RuntimeError, match=r"static_graph=True\) records .* accumulate\(Clean\(\), …\)"):
            accumulate(mixer, run, *batch(rank))
        accumulate(Clean(), run, *batch(rank), weight=0.0)
    for _ in range(3):
        before = reductions.count
        accumulate(mixer, run, *batch(rank), criterion=precise, host=host, generator=seeded(3))
        counts.append(reductions.count - before)
        if isinstance(host, ScalerHost):
            host.scaler.step(optimizer)
            host.scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"counts": counts, "parameters": dict(model.module.state_dict())}


def draws(rank, mixer, host=None):
    torch.manual_seed(0)
    model, _ = parallel(bare())
    from_default = accumulate(mixer, model, *batch(rank), host=host and host())
    given = [accumulate(mixer, model, *batch(rank), generator=seeded(3), host=host and host()) for _ in range(2)]
    return {"default": saved(from_default.plan), "given": [saved(step.plan) for step in given]}


def scaler_host(_model):
    return ScalerHost(torch.amp.GradScaler("cpu", init_scale=1024.0))


def scaled(rank):
    model, reductions = parallel(bare())
    accumulate(SAGE(), model, *batch(rank), criterion=precise, host=scaler_host(model), generator=seeded(3))
    plain, _ = parallel(bare())
    accumulate(SAGE(), plain, *batch(rank), criterion=precise, generator=seeded(3))
    return {"scaled": gradients(model), "plain": gradients(plain), "reductions": reductions.count}


def overflow(rank, share):
    """The clean pass of the second process alone overflows."""
    model, _ = parallel(bare())
    passes = iter(range(2))

    def criterion(logits, targets):
        return precise(logits, targets) * (float("inf") if rank == 1 and next(passes) == 0 else 1.0)

    host, optimizer = scaler_host(model), torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(SAGE(mixed_share=share), model, *batch(rank), criterion=criterion, host=host, generator=seeded(3))
    before = model.module.head.weight.detach().clone()
    host.scaler.step(optimizer)
    host.scaler.update()
    return {"scale": host.scaler.get_scale(), "before": before, "after": model.module.head.weight.detach()}


class Answering(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = bare()

    def forward(self, images):
        return {"logits": self.inner(images)}


class Logits(Host):
    def forward(self, model, images):
        return model(images)["logits"]


class WithUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = bare()
        self.unused = nn.Linear(2, 2).double()

    def forward(self, images):
        return self.inner(images)


def microbatches(rank):
    model, reductions = parallel(bare())
    images, labels = batch(rank)
    plans = []
    with model.no_sync():
        plans.append(accumulate(SAGE(), model, images[:2], labels[:2], criterion=precise, weight=0.5, generator=seeded(3)).plan)
        inside = reductions.count
    plans.append(accumulate(SAGE(), model, images[2:], labels[2:], criterion=precise, weight=0.5, generator=seeded(4)).plan)
    return {
        "inside": inside,
        "reductions": reductions.count,
        "gradients": gradients(model),
        "plans": [saved(plan) for plan in plans],
    }


def hooks_without_reuse(rank):
    model, reductions = parallel(bare())
    counts = dict.fromkeys(dict(model.named_parameters()), 0)

    def count(name, _tensor):
        counts[name] += 1

    for name, parameter in model.named_parameters():
        parameter.register_hook(partial(count, name))
    accumulate(SAGE(mixed_share=1.0), model, *batch(rank), criterion=precise)
    return {"counts": list(counts.values()), "reductions": reductions.count}


class Synchronised(nn.Module):
    """Stands for SyncBatchNorm, which CPUs have not: each training pass waits for the other process."""

    def forward(self, images):
        if self.training:
            distributed.all_reduce(images.detach().mean())
        return images


def sometimes_mixed(rank):
    """Would wait for ever where one process runs two passes and the other one."""
    model, reductions = parallel(nn.Sequential(Synchronised(), bare()))
    generator = seeded(3)
    mixed = [
        not accumulate(SAGE(prob=0.5), model, *batch(rank), criterion=precise, generator=generator).plan.is_identity
        for _ in range(12)
    ]
    return {"mixed": mixed, "reductions": reductions.count}


def batchnorm(rank, mode):
    model, _ = parallel(bare(norm=True))
    accumulate(SAGE(saliency=InputGradient(mode=mode)), model, *batch(rank), criterion=precise)
    flags = [module.training for module in model.modules()]
    return {
        "moves": [int(part.num_batches_tracked) for part in model.modules() if isinstance(part, nn.BatchNorm2d)],
        "flags": flags,
    }


def plain_call(rank):
    """The saliency of a plain call is taken from inside the wrapper, which goes on as if nothing had happened."""
    model, reductions = parallel(bare(norm=True))
    images, labels = batch(rank)
    with torch.no_grad():  # so that a broadcast of the first process's would show
        model.module.stage1[1].running_mean.fill_(rank)
    mixed, targets = SAGE(num_classes=5)(images, labels, model=model, generator=seeded(3))
    mean = model.module.stage1[1].running_mean.clone()
    precise(model(mixed), targets).backward()
    return {"mean": mean, "reductions": reductions.count, "finite": bool(mixed.isfinite().all())}


def hidden_in_a_transformer(rank):
    model, reductions = parallel(Tokens().double())
    step = accumulate(ManifoldMixup(layers=("blocks.0",)), model, *batch(rank), criterion=precise)
    return {"layer": step.plan.layer, "reductions": reductions.count}


COMPILED = partial(torch.compile, backend="eager")
SCENARIOS = {
    **{f"gradients of {name}": partial(gradients_of, name) for name in MIXERS},
    "three steps": reductions_of_three_steps,
    "three steps, no reuse": partial(reductions_of_three_steps, mixer=SAGE(mixed_share=1.0)),
    "three steps, compiled around": partial(reductions_of_three_steps, wrap=COMPILED),
    "three steps, compiled inside": partial(reductions_of_three_steps, make=lambda: COMPILED(bare())),
    "three steps, scaler": partial(reductions_of_three_steps, host=scaler_host),
    "three steps, own host": partial(reductions_of_three_steps, host=lambda _: Logits(), make=Answering),
    "three steps, scaler around own host": partial(
        reductions_of_three_steps, host=lambda _: ScalerHost(torch.amp.GradScaler("cpu"), Logits()), make=Answering
    ),
    "three steps, named host": partial(reductions_of_three_steps, host=mixsage.DDPHost),
    "three steps, unused parameters": partial(reductions_of_three_steps, make=WithUnused, find_unused_parameters=True),
    "three steps, bucket views": partial(reductions_of_three_steps, gradient_as_bucket_view=True),
    "three steps, static graph": partial(reductions_of_three_steps, static_graph=True),
    "three steps, no reuse, static graph": partial(reductions_of_three_steps, mixer=SAGE(mixed_share=1.0), static_graph=True),
    "draws": partial(draws, mixer=SAGE()),
    "draws of cutmix": partial(draws, mixer=CutMix()),
    "draws, scaler": partial(draws, mixer=SAGE(), host=lambda: scaler_host(None)),
    "scaled": scaled,
    "overflow": partial(overflow, share=0.7),
    "overflow, no reuse": partial(overflow, share=1.0),
    "microbatches": microbatches,
    "hooks without reuse": hooks_without_reuse,
    "sometimes mixed": sometimes_mixed,
    "batchnorm, train": partial(batchnorm, mode="train"),
    "batchnorm, eval": partial(batchnorm, mode="eval"),
    "plain call": plain_call,
    "transformer": hidden_in_a_transformer,
}


def process(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    for name, scenario in SCENARIOS.items():
        try:
            seen = scenario(rank=rank)
        except Exception:  # noqa: BLE001  # told to the test of this scenario, which fails with it
            seen = {"failed": traceback.format_exc()}
        torch.save(seen, folder / f"{name} {rank}.pt")
    leave()


if __name__ == "__main__":
    process(int(sys.argv[1]), Path(sys.argv[2]))
