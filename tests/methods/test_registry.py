"""The folder is the registry: names, classes, and what is said of a name that is not there."""

import importlib
import pkgutil
import sys
import types
from dataclasses import dataclass, fields, is_dataclass

import pytest
import torch

import mixsage
from mixsage import Mixer, available, get, methods


def test_methods_are_the_modules_of_the_folder():
    names = {module.name for module in pkgutil.iter_modules(methods.__path__)} - {"base"}
    assert set(available()) == {name for name in names if not name.startswith("_")}
    assert available() == sorted(available())
    assert {"clean", "mixup", "cutmix", "manifold", "sage"} <= set(available())


@pytest.mark.parametrize("name", available())
def test_every_name_gives_a_method(name):
    method = get(name)
    assert issubclass(method, Mixer)
    assert method.__module__ == f"mixsage.methods.{name}"
    assert is_dataclass(method)
    assert isinstance(method(), method), "every method has settings of its own to begin with"


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("clean", "Clean"),
        ("mixup", "Mixup"),
        ("cutmix", "CutMix"),
        ("manifold", "ManifoldMixup"),
        ("saliencymix", "SaliencyMix"),
        ("puzzlemix", "PuzzleMix"),
        ("comixup", "CoMixup"),
        ("sage", "SAGE"),
    ],
)
def test_names(name, cls):
    assert get(name) is getattr(mixsage, cls)
    assert cls in mixsage.__all__


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SAGE", "did you mean 'sage'? "),
        ("cutmx", "did you mean 'cutmix'? "),
        ("base", ""),
        ("zzzzzz", ""),
        ("", ""),
        ("_private", ""),
        (None, ""),
    ],
)
def test_a_method_that_is_not_there(name, hint):
    with pytest.raises(ValueError) as error:
        get(name)
    message = str(error.value)
    assert message.startswith(f"unknown method {name!r}; {hint}")
    assert message.endswith(f"valid: {', '.join(available())}")


@pytest.mark.parametrize("count", [0, 2])
def test_a_module_must_define_one_method(monkeypatch, count):
    module = types.ModuleType("mixsage.methods.clean")
    for n in range(count):
        kind = type(f"Method{n}", (mixsage.Clean,), {"__module__": module.__name__})
        setattr(module, kind.__name__, dataclass(frozen=True, kw_only=True)(kind))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    with pytest.raises(ImportError, match=f"mixsage.methods.clean must define exactly one public Mixer, found {count}"):
        get("clean")


@dataclass(frozen=True, kw_only=True)
class Own(Mixer):
    """Somebody's own method: the first half of one picture, the second half of the next."""

    def draw(self, images, labels, saliency, generator):
        left = torch.zeros(1, 1, *images.shape[-2:])
        left[..., : images.shape[-1] // 2] = 1
        masks = torch.cat([left, 1 - left], dim=1).expand(len(images), -1, -1, -1)
        rows = torch.arange(len(images))
        return mixsage.MixPlan(sources=torch.stack([rows, rows.roll(-1)], dim=1), masks=masks)


def test_a_method_of_ones_own_needs_no_registry():
    images, targets = Own(num_classes=3)(torch.arange(3.0)[:, None, None, None].expand(3, 1, 2, 4), torch.arange(3))
    assert images[0, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert targets[0].tolist() == [0.5, 0.5, 0]
    assert [field.name for field in fields(Own)] == ["prob", "per_sample", "num_classes"]
