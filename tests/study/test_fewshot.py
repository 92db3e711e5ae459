"""Few-shot tasks in a study: of classes that its runs have not seen, on data without any test split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from image_files import save

pytest.importorskip("lightning_fabric")
pytest.importorskip("torchmetrics")
pytest.importorskip("safetensors")

from mixsage.data import mini_imagenet_classes
from mixsage.study import records
from mixsage.study.runner import run_study
from mixsage.study.spec import FewShot, read_study

ARM = '[[arms]]\nmethod = "clean"\n'


def test_the_tasks_of_a_study(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(f'{ARM}[fewshot]\ndata = "novel"\nshots = [1]\ntasks = 50\n')
    (run,) = read_study(file).runs
    assert run.fewshot == FewShot(data="novel", shots=(1,), ways=5, tasks=50)
    assert FewShot.read(run.fewshot.plain()) == run.fewshot, "as it travels to a worker"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("shots = [1]\n", "fewshot needs data"),
        ('data = "novel"\nshot = [1]\n', "did you mean 'shots'"),
        ('data = "novel"\nshots = 1\n', "fewshot: shots must be a list"),
        ('data = "novel"\nshots = []\n', "shots of at least 1"),
        ('data = "novel"\nways = 1\n', "at least 2 ways"),
    ],
)
def test_what_is_wrong_with_the_tasks_is_said(tmp_path, table, message):
    file = tmp_path / "study.toml"
    file.write_text(f"{ARM}[fewshot]\n{table}")
    with pytest.raises(ValueError, match=message):
        read_study(file)


@pytest.mark.slow
def test_mini_imagenet_from_a_folder_of_classes(tmp_path: Path):
    """The recipe's own way: base classes to learn from, novel ones to be judged by, told apart by their ids."""
    source = torch.Generator().manual_seed(0)
    parts = mini_imagenet_classes()
    for part, count in (("train", 1), ("test", 16)):
        for shade, name in enumerate(parts[part]):
            for number in range(count):
                # Each class has a colour of its own, so that features tell the classes apart.
                colour = torch.rand(3, 1, 1, generator=torch.Generator().manual_seed(shade))
                image = (200 * colour + 55 * torch.rand(3, 84, 84, generator=source)).to(torch.uint8)
                save(tmp_path / "mini-imagenet" / name / f"{number}.png", image)
    recipe = Path(__file__).parents[2] / "recipes/paper/mini-imagenet-resnet12.toml"
    spec = tmp_path / "few.toml"
    spec.write_text(
        f'recipe = "{recipe}"\n[settings]\nwidth = 4\nepochs = 1\nbatch_size = 32\nmilestones = [1]\ndevice = "cpu"\nloggers = []\nworkers = 0\n'
        f'data_dir = "{tmp_path}"\n{ARM}[fewshot]\ndata = "mini-imagenet-test"\nshots = [1]\ntasks = 20\n'
    )
    assert not run_study(spec, tmp_path / "out").failed
    (record,) = records.read(tmp_path / "out/records.jsonl")
    assert {"fewshot_1", "fewshot_1_interval"} <= set(record.metrics) and "last" not in record.metrics
    assert record.metrics["fewshot_1"] > 40, "colours are told apart: a guess is right in 20 %"
