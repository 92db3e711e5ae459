"""The examples of the integrations, as a user runs them: each trains a small network for an epoch, and learns something."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "demo.py")
ACCURACY = re.compile(r"accuracy:? (?:([\d.]+)%|(0\.\d+))")


def test_there_are_examples():
    assert {"raw_loop.py", "torchvision_.py", "timm_.py", "lightning_.py", "transformers_.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_epoch_of_each(script, tmp_path):
    if script.endswith("_.py"):
        pytest.importorskip(script.removesuffix("_.py"))
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / script), "--epochs", "1"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    found = [float(percent) / 100 if percent else float(share) for percent, share in ACCURACY.findall(run.stdout)]
    assert found, run.stdout
    assert min(found) > 0.4, run.stdout
    assert not list(tmp_path.iterdir())  # nothing is left behind
