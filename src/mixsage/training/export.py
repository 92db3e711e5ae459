"""A trained model as a file that runs without this library."""

from __future__ import annotations

from pathlib import Path

import torch

from mixsage.training.predict import load_model


def export(run: Path, *, form: str = "torch", out: Path | None = None) -> Path:
    """Write the model of a complete run, for batches of any size of normalised images; returns the file."""
    model, description = load_model(run)
    height, width = description["size"]
    example = torch.zeros(2, description["channels"], height, width)
    target = out or run / ("model.onnx" if form == "onnx" else "model.pt2")
    batch = {0: torch.export.Dim("batch", min=1)}
    if form == "onnx":
        try:
            import onnxscript  # noqa: F401  # torch's exporter needs it, and says so less clearly
        except ModuleNotFoundError:
            raise ModuleNotFoundError("ONNX needs two more packages: pip install onnx onnxscript") from None
        program = torch.onnx.export(
            model, (example,), input_names=["images"], output_names=["logits"], dynamic_shapes=(batch,), dynamo=True, verbose=False
        )
        assert program is not None
        program.save(str(target))
    else:
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=(batch,)), target)
    return target
