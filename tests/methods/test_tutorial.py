"""The method of docs/own-method.md, put into a copy of the folder as a file, is found by being there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mixsage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-method.md"

USE = """
import torch, mixsage
from mixsage.training.notation import read_mixer

assert "stripes" in mixsage.available()
method = mixsage.get("stripes")
assert (method.__name__, method.__module__) == ("Stripes", "mixsage.methods.stripes")
assert read_mixer("Stripes(bands=2)") == method(bands=2)
images = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, 1, 4, 3)
mixed, targets = method(bands=2, num_classes=2)(images, torch.tensor([0, 1]), generator=torch.Generator().manual_seed(1))
assert set(targets.flatten().tolist()) <= {0.0, 0.5, 1.0}
assert torch.equal(mixed[:, :, :2], images[:, :, :2])
from mixsage.cli import main
raise SystemExit(main(["methods", "stripes"]))
"""


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")
def test_a_file_in_the_folder_is_a_method(tmp_path):
    (block,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class Stripes(" in code)
    module, _, _ = block.partition("\n\n\nimages, labels =")
    package = Path(mixsage.__file__).parent
    shutil.copytree(package, tmp_path / "mixsage", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mixsage" / "methods" / "stripes.py").write_text(module + "\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(  # noqa: PLW1510  # what it says is looked at below
        [sys.executable, "-c", USE],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Stripes: Every other band of rows comes from the partner." in done.stdout
    assert "bands = 4" in done.stdout
    assert "How many bands the picture is cut into." in done.stdout
