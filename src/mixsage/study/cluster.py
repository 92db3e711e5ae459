"""The runs of a study on a Ray cluster: each asks for its cores and GPUs, and one whose worker is lost goes to another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mixsage.errors import not_installed
from mixsage.study.execute import execute, failure_of
from mixsage.study.records import Record
from mixsage.study.spec import FewShot, Planned, Study
from mixsage.training.config import Config, settings_of, with_settings


def on_ray(study: Study, waiting: Sequence[Planned], folder: Path, address: str, retries: int) -> Iterator[Record]:
    """Records as they come. ``folder`` must be one that all machines of the cluster share, so that a run can be continued elsewhere."""
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError(not_installed("a study on a cluster", "ray", "study")) from None
    ray.init(address=None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    # A lost worker costs a retry of Ray's; an error of the run itself costs one of ours, which Ray is told to make too.
    task: Any = ray.remote(num_cpus=study.cores, num_gpus=study.gpus, max_retries=max(retries, 3), retry_exceptions=False)(_remote)
    pending = {task.remote(*_plain(run), str(folder.resolve())): (run, 0) for run in waiting}
    while pending:
        (ready, *_), _ = ray.wait(list(pending), num_returns=1)
        run, attempt = pending.pop(ready)
        try:
            yield Record.from_json(ray.get(ready))
        except ray.exceptions.RayError as error:
            if attempt < retries:
                again = task.remote(*_plain(run), str(folder.resolve()))
                pending[again] = (run, attempt + 1)
            else:
                yield failure_of(run, str(error).strip().splitlines()[-1])


def _plain(run: Planned) -> tuple[str, str, int, dict[str, Any], dict[str, Any] | None]:
    return run.name, run.arm, run.seed, settings_of(run.config), None if run.fewshot is None else run.fewshot.plain()


def _remote(name: str, arm: str, seed: int, settings: dict[str, Any], fewshot: dict[str, Any] | None, folder: str) -> str:
    """On a worker: plain values in, a line of JSON out."""
    config = with_settings(Config(), json.loads(json.dumps(settings)))
    run = Planned(name=name, arm=arm, seed=seed, config=config, fewshot=None if fewshot is None else FewShot.read(fewshot))
    return execute(run, Path(folder)).to_json()
