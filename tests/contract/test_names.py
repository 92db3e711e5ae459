"""Where each public name lives: other people's code imports them from the module of their subject as well as from the package."""

import importlib

import pytest

import mixsage

HOMES = {
    "plan": ["Blocks", "Boxes", "MixPlan", "Shift"],
    "saliency": ["FineGrained", "InputGradient", "Uniform", "input_gradient", "normalise", "smooth"],
    "rearrange": ["Full", "Guided", "NoShift", "Paste", "Sampled", "search", "total_saliency"],
    "methods": ["CleanPass", "Mixer", "available", "get"],
    "loss": ["binary_cross_entropy", "cross_entropy", "pixel_cross_entropy"],
    "step": ["CleanPass", "Step", "accumulate"],
    "host": ["DDPHost", "FabricHost", "Host", "ScalerHost"],
    "models": ["preactresnet18", "resnet12", "resnext29_4_24", "wrn16_8"],
}


@pytest.mark.parametrize("home", HOMES)
def test_names_are_at_home(home):
    module = importlib.import_module(f"mixsage.{home}")
    for name in HOMES[home]:
        assert getattr(module, name) is getattr(mixsage, name, getattr(module, name))


def test_the_package_lists_what_it_exports():
    assert set(mixsage.__all__) <= set(vars(mixsage))
