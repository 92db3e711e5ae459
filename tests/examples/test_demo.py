"""The demo, short: both runs, the table, the pictures; and once more over what it left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning_fabric")
pytest.importorskip("torchmetrics")
pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")

DEMO = Path(__file__).resolve().parents[2] / "examples/demo.py"


def demo(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), "--out", str(out), "--epochs", "1"], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_demo_compares_and_draws_and_runs_again(tmp_path):
    for _ in range(2):
        done = demo(tmp_path / "demo")
        assert done.returncode == 0, done.stderr
        rows = {
            line[:12].strip(): line[12:].split()
            for line in done.stdout.splitlines()
            if line.startswith(("no mixing   ", "SAGE   "))
        }
        assert set(rows) == {"no mixing", "SAGE"}
        for clean, _, noisy, _, seconds in rows.values():
            assert 10 < float(clean) <= 100 and 5 <= float(noisy) <= 100 and float(seconds) >= 0
        for name in ("gallery.png", "pipeline.png"):
            assert (tmp_path / "demo" / name).read_bytes().startswith(b"\x89PNG")
            assert str(tmp_path / "demo" / name) in done.stdout
