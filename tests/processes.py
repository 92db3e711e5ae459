"""Two processes on one machine: the loops that train a model together, each leaving the state of its model in a file."""

import gc
import os
import socket
import traceback
from contextlib import closing
from datetime import timedelta

import torch
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from helpers import seeded
from mixsage import SAGE, accumulate
from mixsage.host import fork
from mixsage.loss import cross_entropy
from mixsage.models import small_convnet
from raw_loop import LR, SEED, batches

COUNT = 2
STEPS = 3


def run(folder) -> None:
    """Every scenario, one after another."""
    together(_scenarios, folder)


def together(work, *arguments) -> None:
    """`work(rank, *arguments)` in processes that find each other as under torchrun."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_start, (port, work, arguments), nprocs=COUNT)


def _start(rank, port, work, arguments) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(COUNT),
        "LOCAL_WORLD_SIZE": str(COUNT),
    }
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    work(rank, *arguments)
    leave()


def leave() -> None:
    """Models go before the group that they talk through, and no process before the other is done: torch may abort otherwise."""
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _scenarios(rank, folder) -> None:
    for name, (train, mixer, options) in SCENARIOS.items():
        try:
            state = train(rank, mixer, **options)
        except Exception:  # noqa: BLE001  # told to the test of this scenario, which fails with it
            state = {"failed": traceback.format_exc()}
        torch.save(state, f"{folder}/{name} {rank}.pt")


def network():
    """Without BatchNorm, whose statistics would be each process's own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small_convnet(width=8, norm=False)


def share(rank):
    """The batches of one process."""
    return batches(COUNT * STEPS, 8)[rank::COUNT]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)


def expected(mixer, every=1):
    """The same steps in one process: the mean over the shares, whose choices come from forks of one generator."""
    model, generator = network(), seeded(SEED)
    optimizer = sgd(model)
    for step in range(STEPS):
        states = generator.get_state()
        for rank in range(COUNT):
            generator.set_state(states)
            choices = fork(generator, rank)
            images, labels = share(rank)[step]
            accumulate(mixer, model, images, labels, generator=choices, weight=1 / COUNT / every)
        if (step + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def count_reductions(model):
    """A list that grows by one whenever DistributedDataParallel reduces its only bucket of gradients."""
    reductions = []

    def counted(seen, bucket):
        seen.append(bucket.index())
        return allreduce_hook(None, bucket)

    model.register_comm_hook(reductions, counted)
    return reductions


def lightning(rank, mixer, every=1):
    import lightning.pytorch as pl

    from lightning_module import QUIET, Classifier
    from mixsage.integrations.lightning import Mixing

    class Plain(Classifier):
        def configure_optimizers(self):
            return sgd(self)

    class Count(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.reductions = count_reductions(trainer.strategy.model)

    module, count = Plain(network()), Count()
    trainer = pl.Trainer(
        callbacks=[Mixing(mixer, generator=seeded(SEED)), count],
        accelerator="cpu",
        strategy="ddp",
        devices=COUNT,
        max_epochs=1,
        accumulate_grad_batches=every,
        use_distributed_sampler=False,
        **QUIET,
    )
    samples = [sample for images, labels in share(rank) for sample in zip(images, labels, strict=True)]
    trainer.fit(module, torch.utils.data.DataLoader(samples, batch_size=8))
    assert trainer.world_size == COUNT
    assert len(count.reductions) == STEPS // every
    return module.model.state_dict()


def fabric(rank, mixer):
    from lightning.fabric import Fabric

    from mixsage.integrations.fabric import FabricHost

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=COUNT)
    fabric.launch()
    original = network()
    model, optimizer = fabric.setup(original, sgd(original))
    reductions = count_reductions(model._forward_module)
    loop(rank, mixer, model, optimizer, host=FabricHost(fabric, model))
    assert len(reductions) == STEPS
    return original.state_dict()


def accelerate(rank, mixer):
    from accelerate import Accelerator

    from mixsage.integrations.accelerate import AccelerateHost

    accelerator = Accelerator(cpu=True)
    original = network()
    model, optimizer = accelerator.prepare(original, sgd(original))
    assert accelerator.num_processes == COUNT
    reductions = count_reductions(model)
    loop(rank, mixer, model, optimizer, host=AccelerateHost(accelerator))
    assert len(reductions) == STEPS
    return original.state_dict()


def sharded(rank, mixer, version):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model = network()
    if version == 2:
        mesh = init_device_mesh("cpu", (COUNT,))
        fully_shard(model.stage2, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    loop(rank, mixer, model, sgd(model))
    if version == 2:
        return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    with FullyShardedDataParallel.summon_full_params(model):
        return {name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()}


def loop(rank, mixer, model, optimizer, host=None) -> None:
    generator = seeded(SEED)
    for images, labels in share(rank):
        accumulate(mixer, model, images, labels, criterion=cross_entropy, generator=generator, host=host)
        optimizer.step()
        optimizer.zero_grad()


REUSE, NO_REUSE = SAGE(num_classes=10), SAGE(num_classes=10, mixed_share=1.0)

SCENARIOS = {
    f"{name}, {label}": (train, mixer, options)
    for name, train, options in (
        ("lightning", lightning, {}),
        ("lightning, microbatches", lightning, {"every": 3}),
        ("fabric", fabric, {}),
        ("accelerate", accelerate, {}),
        ("fully_shard", sharded, {"version": 2}),
        ("FullyShardedDataParallel", sharded, {"version": 1}),
    )
    for label, mixer in (("reuse", REUSE), ("no reuse", NO_REUSE))
}
"""What is trained how, by name: the loop, the method, and the loop's options."""
