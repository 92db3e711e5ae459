"""What stands in the recipes: the paper's protocol to the letter, its numbers in the headers, and one run made once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from mixsage.reports.published import canonical, published, title
from mixsage.study.records import Record
from mixsage.study.spec import comparable, read_study
from mixsage.training import read_recipe, settings_of
from mixsage.training.notation import read_mixer
from mixsage.training.schedule import learning_rate

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
PAPER = sorted((RECIPES / "paper").glob("*.toml"))
STUDIES = sorted(path for path in (RECIPES / "studies").glob("*.toml") if path.stem != "cifar10-5k")
CIFAR = [path for path in PAPER if path.stem.startswith("cifar")]

PROTOCOL = {
    "batch_size": 100,
    "epochs": 300,
    "optimizer": "sgd",
    "lr": 0.2,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 1e-4,
    "schedule": "step",
    "milestones": [100, 200],
    "lr_decay": 0.1,
    "loss": "bce",
    "padding": 2,
    "augment": True,
    "label_smoothing": 0.0,
    "per_class": None,
    "width": None,
    "val_share": 0.0,
    "microbatches": 1,
    "clip": None,
    "ema": None,
    "mix_from": 1,
    "mix_until": None,
    "precision": "fp32",
    "eval_every": 1,
}
"""Of the CIFAR experiments; what is None is not used."""
SAGES = {
    "cifar10-preactresnet18": (0.6, 0.7),
    "cifar100-preactresnet18": (0.5, 0.7),
    "cifar100-wrn16_8": (0.6, 0.7),
    "cifar100-resnext29_4_24": (0.7, 0.5),
}
"""(u, η)."""
METHODS = ["Vanilla", "Mixup", "CutMix", "Manifold Mixup", "SaliencyMix", "Puzzle Mix", "Co-Mixup", "SAGE"]


def plain(run):
    return settings_of(run.config)


def differs(run):
    """What sets a run apart from the protocol."""
    return {name: value for name, value in plain(run).items() if name in PROTOCOL and value != PROTOCOL[name]}


@pytest.mark.parametrize("path", CIFAR, ids=lambda path: path.stem)
def test_the_cifar_recipes_are_the_protocol(path):
    settings = settings_of(read_recipe(path))
    assert {name: settings[name] for name in PROTOCOL} == PROTOCOL
    assert f"{settings['data']}-{settings['model']}" == path.stem
    mixer = read_mixer(settings["method"])
    assert (mixer.truncation, mixer.mixed_share) == SAGES[path.stem]


def test_the_learning_rate_falls_after_epochs_100_and_200():
    optimisation = read_recipe(CIFAR[0]).optimisation
    rates = [learning_rate(optimisation, epoch * 500 + step, 500) for epoch in (0, 99, 100, 199, 200, 299) for step in (0, 499)]
    assert rates == pytest.approx([0.2] * 4 + [0.02] * 4 + [0.002] * 4)


@pytest.mark.parametrize("name", SAGES)
def test_a_main_study_has_eight_methods_three_seeds_and_one_exception(name):
    runs = read_study(RECIPES / f"studies/main-{name}.toml").runs
    assert [run.arm for run in runs[:8]] == METHODS
    assert len(runs) == 24 and {run.seed for run in runs} == {0, 1, 2}
    exception = {"Co-Mixup": {"lr": 0.12}} if name == "cifar10-preactresnet18" else {}
    assert all(differs(run) == exception.get(run.arm, {}) for run in runs)
    for run in runs:
        mixer = read_mixer(run.config.method.method)
        if run.arm == "SAGE":
            assert (mixer.truncation, mixer.mixed_share) == SAGES[name]
        else:
            assert mixer == type(mixer)(), "the settings of the other methods are the paper's where they are left at their defaults"


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize("kind", ["components", "search", "mixed-share", "truncation"])
def test_an_ablation_changes_nothing_but_what_it_is_about(kind, data):
    full, *others = read_study(RECIPES / f"studies/ablation-{kind}-{data}.toml").runs
    arms = {run.arm: run for run in (full, *others)}
    reference = read_mixer(full.config.method.method)
    assert full.arm == "SAGE" and (reference.truncation, reference.mixed_share) == SAGES[f"{data}-preactresnet18"]
    changed = {
        "search": {"search"},
        "mixed-share": {"mixed_share"},
        "truncation": {"truncation"},
        "components": {"search", "blend"},
    }
    for run in arms.values():
        assert differs(run) == {}
        mixer = read_mixer(run.config.method.method)
        different = {name for name in vars(mixer) if getattr(mixer, name) != getattr(reference, name)}
        assert different <= changed[kind] and (bool(different) or run.arm == "SAGE")


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_a_run_that_two_studies_ask_for_is_made_once(data):
    """With one folder for both: the name of a run says what it is, not what asked for it."""
    main = {run.name for run in read_study(RECIPES / f"studies/main-{data}-preactresnet18.toml").runs if run.arm == "SAGE"}
    for kind in ("components", "search", "mixed-share", "truncation"):
        assert main <= {run.name for run in read_study(RECIPES / f"studies/ablation-{kind}-{data}.toml").runs}


def test_the_runtime_studies_differ_from_the_main_ones_in_their_length_alone():
    for path in STUDIES:
        if path.stem.startswith("runtime-"):
            main = read_study(path.with_name(path.name.replace("runtime-", "main-"))).runs
            short = read_study(path).runs
            settings = [{**comparable(plain(run)), "epochs": 3} for run in main]
            assert [comparable(plain(run)) for run in short] == settings


def test_few_shot_tasks_are_of_classes_that_the_network_has_not_seen():
    runs = read_study(RECIPES / "studies/fewshot-mini-imagenet.toml").runs
    assert [run.arm for run in runs[:7]] == [name for name in METHODS if name != "Manifold Mixup"]
    assert all(
        (run.config.data.data, run.config.method.loss, run.config.model.model) == ("mini-imagenet", "ce", "resnet12")
        for run in runs
    )
    (tasks,) = {run.fewshot for run in runs}
    assert (tasks.data, tasks.shots, tasks.ways) == ("mini-imagenet-test", (1, 5), 5)


METRICS = {"main": ("accuracy",), "ablation": ("accuracy",), "fewshot": ("fewshot",), "runtime": ("hours",)}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_arm_has_the_papers_number_and_the_header_says_the_same(path):
    kind = path.stem.split("-")[0]
    header = re.sub(r"\n# +", " ", path.read_text())
    for run in read_study(path).runs:
        settings = plain(run)
        record = Record(
            run=run.name, arm=run.arm, data=settings["data"], model=settings["model"], seed=run.seed, epochs=300, method=settings["method"], settings=settings,
        )  # fmt: skip
        for metric in METRICS[kind]:
            value = published(record, title("methods", run.arm), metric)
            assert value is not None, f"the paper has no {metric} for {run.arm}: {canonical(settings['method'])}"
            assert f"{run.arm} {value:.2f}" in header


@pytest.mark.parametrize("path", [*PAPER, *STUDIES], ids=lambda path: path.stem)
def test_a_header_states_the_claim(path):
    header = path.read_text().partition("\n\n")[0]
    labels = re.findall(r"^# (\w+):", header, re.MULTILINE)
    assert labels == ["claim", "paper", "ours", "hardware", "versions", "commit"]
