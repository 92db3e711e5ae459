"""Sharded weights in processes of their own: saved in the middle, and handed out again."""

import torch

import processes


def half_way(rank, folder):
    """Train, save in the middle, train on; then train the second half again from what was saved."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from mixsage.training.state import gathered, scatter

    mesh = init_device_mesh("cpu", (2,))

    def fresh():
        model = processes.network()
        fully_shard(model.stage2, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def steps(model, optimizer, batches):
        for images, labels in batches:
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    share = processes.share(rank)
    model, optimizer = fresh()
    steps(model, optimizer, share[:2])
    saved = gathered(model, optimizer)
    if rank == 0:
        torch.save(saved, f"{folder}/half")
    torch.distributed.barrier()
    steps(model, optimizer, share[2:])
    whole = gathered(model, optimizer)
    model, optimizer = fresh()
    scatter(model, optimizer, torch.load(f"{folder}/half", weights_only=True))
    steps(model, optimizer, share[2:])
    resumed = gathered(model, optimizer)
    if rank == 0:
        assert all(type(value) is torch.Tensor for value in whole[0].values())
        torch.save(whole, f"{folder}/whole")
        torch.save(resumed, f"{folder}/resumed")
