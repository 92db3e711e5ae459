"""Plans that one run draws and another replays, whatever processes they run in."""

import functools
import os
from pathlib import Path

import torch

from mixsage.training import trainer

PROCESSES = 2


def record(folder):
    """From here on, this process keeps the plan of each step in the folder."""
    plain, rank = trainer.accumulate, int(os.environ.get("LOCAL_RANK", "0"))
    step = iter(range(10**6))

    @functools.wraps(plain)
    def recording(*arguments, **options):
        done = plain(*arguments, **options)
        torch.save(done.plan, Path(folder) / f"{next(step)}-{rank}.pt")
        return done

    trainer.accumulate = recording


def replay(folder):
    """From here on, this process takes the recorded plans of all processes: its microbatch k is the batch of process k."""
    plain = trainer.accumulate
    calls = iter(range(10**6))

    @functools.wraps(plain)
    def replaying(*arguments, **options):
        step, rank = divmod(next(calls), PROCESSES)
        return plain(*arguments, **options, plan=torch.load(Path(folder) / f"{step}-{rank}.pt", weights_only=False))

    trainer.accumulate = replaying
