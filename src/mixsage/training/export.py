"""A trained model as a file that runs without this library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixsage.errors import not_installed
from mixsage.training.checkpoint import write_atomically
from mixsage.training.predict import Which, load_model
from mixsage.training.runs import RunFolder

Form = Literal["torch", "onnx"]


def export(run: Path, *, form: Form = "torch", out: Path | None = None, which: Which = "final") -> Path:
    """Write the model of a complete run: normalised images [B, C, H, W] in, logits [B, classes] out, for any B.

    A file of the same name, ending in .json, says what to feed it with: size, mean, std; and the classes in order.

    Args:
        run: folder of a complete run.
        form: "torch", to be loaded by `torch.export.load`, or "onnx".
        out: the file; model.pt2 or model.onnx in the run if left out.
        which: which of the run's weights.

    Returns:
        The file.
    """
    model, about = load_model(run, which=which)
    height, width = about["size"]
    example = torch.zeros(2, about["channels"], height, width)
    target = out or run / ("model.onnx" if form == "onnx" else "model.pt2")
    card_file = target.with_suffix(".json")
    _check_free(run, target, card_file)
    target.parent.mkdir(parents=True, exist_ok=True)
    if form == "onnx":
        _save_onnx(model, example, target)
    else:
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=(_BATCH,)), target)
    card = {name: about[name] for name in ("channels", "size", "mean", "std", "classes")}
    write_atomically(card_file, (json.dumps(card, indent=2) + "\n").encode())
    return target


def _check_free(run: Path, target: Path, card_file: Path) -> None:
    """Whether nothing of the run would be lost under the two files."""
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name a file in it")
    folder = RunFolder(run)
    kept = {path.resolve() for path in (folder.description, folder.metrics, folder.weights, folder.best)}
    if target == card_file or not kept.isdisjoint({target.resolve(), card_file.resolve()}):
        raise ValueError(f"{target} and {card_file.name} beside it would overwrite what is to be kept; choose another name")


_BATCH: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}


def _save_onnx(model: nn.Module, example: Tensor, target: Path) -> None:
    try:
        import onnxscript  # noqa: F401  # torch's exporter needs it, and says so less clearly
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed("ONNX", "onnxscript", "onnx")) from error
    program = torch.onnx.export(
        model, (example,), input_names=["images"], output_names=["logits"], dynamic_shapes=(_BATCH,), dynamo=True, verbose=False
    )
    assert program is not None
    program.save(str(target))
