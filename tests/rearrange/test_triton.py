"""The triton engine's kernels: in Triton's interpreter on the CPU, and on a GPU where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mixsage.rearrange import search

pytest.importorskip("triton")

CHECKS = """
import torch
from mixsage.rearrange import Guided, all_shifts, best_of, total_saliency
from mixsage.rearrange import triton as engine
from mixsage.warp import translate

device = "DEVICE"
generator = torch.Generator().manual_seed(0)
for dtype, (height, width) in ((torch.float32, (5, 7)), (torch.float64, (1, 6)), (torch.float32, (40, 33))):
    first, second = (torch.rand(3, height, width, generator=generator, dtype=dtype).to(device) ** 4 for _ in range(2))
    first[0], second[1] = 0, 0
    shifts = torch.cat([all_shifts(height, width)[:: 1 if height < 9 else 701], torch.tensor([[height, 0], [0, -width - 5]])])
    for one, other in ((first, second), (first.transpose(1, 2).contiguous().transpose(1, 2), second)):
        expected = total_saliency(one, other, shifts, engine="direct")
        torch.testing.assert_close(total_saliency(one, other, shifts, engine="triton"), expected)
    engine._MOST_PAIRS = 2
    torch.testing.assert_close(total_saliency(first, second, shifts, engine="triton"), total_saliency(first, second, shifts, engine="direct"))
    found, best = (best_of(first, second, shifts, engine=name) for name in ("triton", "direct"))
    torch.testing.assert_close(found.values, best.values)
    assert found.shifts[0].tolist() == best.shifts[0].tolist()

    images = torch.randn(3, 2, height, width, generator=generator, dtype=dtype).to(device)
    offsets = torch.tensor([[1 - height, 2], [0, 0], [height + 2, 1]]).to(device)
    partners = torch.tensor([2, 0, 1]).to(device)
    mixed, mask = engine.blend(images, partners, first, second, offsets)
    share = Guided().mask(first, second, offsets)
    moved = torch.stack([translate(images[partners][:, channel], offsets) for channel in range(2)], dim=1)
    torch.testing.assert_close(mask, share)
    torch.testing.assert_close(mixed, share[:, None] * images + (1 - share[:, None]) * moved)
print("all agree")
"""


def run_checks(device, **variables):
    source = str(Path(sys.modules["mixsage"].__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, **variables}
    script = CHECKS.replace("DEVICE", device)
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_kernels_in_the_interpreter():
    pytest.importorskip("numpy")
    done = run_checks("cpu", TRITON_INTERPRET="1")
    assert done.stdout.strip().endswith("all agree"), done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_a_gpu():
    done = run_checks("cuda")
    assert done.stdout.strip().endswith("all agree"), done.stderr


def test_maps_on_the_cpu_are_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(
        ValueError, match='engine="triton" works on CUDA devices, the maps lie on cpu; use "direct", "fourier" or "auto"'
    ):
        search(torch.rand(2, 4, 4), torch.rand(2, 4, 4), engine="triton")
