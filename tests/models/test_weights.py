"""Weights out of whatever people wrap them in; and what does not fit, said."""

import argparse
import logging
import subprocess

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mixsage.models import small_convnet
from mixsage.models.weights import fit_weights, read_weights


@pytest.fixture
def model():
    return small_convnet(num_classes=5, width=4)


def altered(model):
    """Another model of the same form, and its weights."""
    other = small_convnet(num_classes=5, width=4)
    for parameter in other.parameters():
        nn.init.uniform_(parameter)
    return other.state_dict()


WRAPPINGS = {
    "bare": lambda weights: weights,
    "state_dict": lambda weights: {"state_dict": weights, "epoch": 7},
    "model": lambda weights: {"model": weights, "optimizer": {"state": {}}},
    "model_state_dict": lambda weights: {"model_state_dict": weights},
    "ema": lambda weights: {"ema": weights},
    "deep": lambda weights: {"ema": {"module": weights, "decay": 0.999}},
    "parallel": lambda weights: {"state_dict": {f"module.{name}": value for name, value in weights.items()}},
    "compiled": lambda weights: {f"_orig_mod.{name}": value for name, value in weights.items()},
    "both": lambda weights: {"model": {f"module._orig_mod.{name}": value for name, value in weights.items()}},
    "averaged": lambda weights: {**{f"module.{name}": value for name, value in weights.items()}, "n_averaged": torch.tensor(3)},
    "lightning": lambda weights: {
        "state_dict": {f"model.{name}": value for name, value in weights.items()},
        "hyper_parameters": {"lr": 0.1},
    },
    "timm": lambda weights: {"state_dict": weights, "args": argparse.Namespace(lr=0.1), "arch": "resnet"},
    "old": lambda weights: {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_common_wrappings(tmp_path, model, wrapping):
    weights = altered(model)
    torch.save(WRAPPINGS[wrapping](weights), tmp_path / "checkpoint.pth")
    fit_weights(model, read_weights(tmp_path / "checkpoint.pth"), "checkpoint.pth")
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_safetensors(tmp_path, model):
    weights = altered(model)
    save_file({f"module.{name}": value for name, value in weights.items()}, tmp_path / "weights.safetensors")
    fit_weights(model, read_weights(tmp_path / "weights.safetensors"), "weights.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_model_with_such_a_name_of_its_own_keeps_it():
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    fit_weights(model, {"module.weight": torch.eye(2), "module.bias": torch.ones(2)}, "file")
    assert torch.equal(model["module"].weight.detach(), torch.eye(2))


def test_several_sets_of_weights_are_mentioned(tmp_path, caplog):
    torch.save({"ema": {"w": torch.zeros(1)}, "model": {"w": torch.ones(1)}}, tmp_path / "both.pt")
    with caplog.at_level(logging.WARNING, logger="mixsage"):
        assert float(read_weights(tmp_path / "both.pt")["w"]) == 1
    assert "model, ema; taking 'model'" in caplog.text


def test_number_of_classes(model):
    other = small_convnet(num_classes=7, width=4).state_dict()
    with pytest.raises(
        ValueError, match=r"head.weight is \[7, 16\], the model has \[5, 16\].* for 7 classes, the model was made for 5"
    ):
        fit_weights(model, other, "other.pt")


def test_mismatched_names(model):
    weights = model.state_dict()
    weights["stranger.weight"] = weights.pop("head.bias")
    with pytest.raises(
        ValueError, match=r"weights in w\.pt do not fit the model: missing: head\.bias; not in the model: stranger\.weight"
    ):
        fit_weights(model, weights, "w.pt")


def test_another_width_is_not_blamed_on_the_classes(model):
    with pytest.raises(ValueError, match="do not fit") as caught:
        fit_weights(model, small_convnet(num_classes=5, width=8).state_dict(), "wide.pt")
    assert "classes" not in str(caught.value)


class Harmful:
    def __reduce__(self):
        return subprocess.run, (["touch", "/tmp/mixsage-must-not-exist"],)


def test_nothing_in_a_file_is_run(tmp_path, model):
    from pathlib import Path

    torch.save({"state_dict": model.state_dict(), "extra": Harmful()}, tmp_path / "bad.pt")
    with pytest.raises(ValueError, match=r"could run code .it names .*run.*save model\.state_dict\(\)"):
        read_weights(tmp_path / "bad.pt")
    assert not Path("/tmp/mixsage-must-not-exist").exists()
    torch.save(model, tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"save model\.state_dict\(\) instead"):
        read_weights(tmp_path / "whole.pt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pt", b"", "damaged"),
        ("text.pt", b"hello, I am no weights" * 20, "damaged|could run code"),
        ("text.safetensors", b"hello, I am no weights" * 20, "no safetensors file"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / name)


def test_truncated_files(tmp_path, model):
    torch.save(model.state_dict(), tmp_path / "a.pt")
    save_file(model.state_dict(), tmp_path / "b.safetensors")
    for name in ("a.pt", "b.safetensors"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="damaged"):
            read_weights(tmp_path / name)


def test_no_weights_inside(tmp_path):
    torch.save({"epoch": 3, "loss": 0.2}, tmp_path / "log.pt")
    with pytest.raises(ValueError, match="no weights that can be recognised; it has epoch, loss"):
        read_weights(tmp_path / "log.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list"):
        read_weights(tmp_path / "list.pt")
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        read_weights(tmp_path / "nowhere.pt")
