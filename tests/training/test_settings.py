"""Settings: recipes, flags and records of runs say the same things in the same words."""

from itertools import pairwise

import pytest
import torch

import mixsage
from mixsage.training import Config, read_recipe, settings_of, with_settings
from mixsage.training.config import Optimisation
from mixsage.training.notation import Call, read_call, read_mixer, write_mixer
from mixsage.training.runs import with_full_paths
from mixsage.training.schedule import learning_rate

# ----------------------------------------------------------------------------------------------------------------- settings


def test_settings_go_round():
    given = {
        "epochs": 3,
        "lr": 0.5,
        "milestones": [1, 2],
        "data_dir": "somewhere",
        "ema": 0.9,
        "loggers": ["csv"],
        "nesterov": False,
    }
    config = with_settings(Config(), given)
    assert settings_of(config) == settings_of(Config()) | given
    assert with_settings(Config(), settings_of(config)) == config


def test_flags_override_the_recipe_which_overrides_the_defaults(tmp_path):
    pytest.importorskip("tyro")
    from mixsage import arguments

    recipe = tmp_path / "recipe.toml"
    recipe.write_text('epochs = 7\nbatch-size = 50\nmethod = "CutMix(alpha=0.5)"\n')
    base = arguments.Train.of(recipe, read_recipe(recipe))
    config = arguments.read(arguments.Train, "train", ["--recipe", str(recipe), "--batch-size", "20", "--out", "run"], base).config
    expected = {"epochs": 7, "batch_size": 20, "method": "CutMix(alpha=0.5)", "out": "run"}
    assert settings_of(config) == settings_of(Config()) | expected


def test_the_help_names_every_setting_once_by_groups():
    pytest.importorskip("tyro")
    from mixsage import arguments

    lines = arguments.help_text(arguments.Train).splitlines()
    for name in [*settings_of(Config()), "recipe", "resume"]:
        flag = name.replace("_", "-")
        assert sum(line.split()[0] in {f"--{flag}", f"--[no-]{flag}"} for line in lines if line.startswith("  --")) == 1, name
    assert next(line for line in lines if line and not line.startswith(" ")) == "Arguments"
    assert len(lines) < 140


def test_a_run_may_be_resumed_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {"photos": "photos", "hf:photos?label=kind": "hf:photos?label=kind", "hf:owner/name": None, "sample": None}
    for data, moved in given.items():
        found = with_full_paths(with_settings(Config(), {"data": data, "out": "run", "weights": "w.pt"}))
        assert found.data.data == (moved or data).replace("photos", str(tmp_path / "photos") if moved else "photos")
        assert (found.run.out, found.model.weights) == (tmp_path / "run", tmp_path / "w.pt")


# ----------------------------------------------------------------------------------------------------------------- notation


@pytest.mark.parametrize("name", mixsage.available())
def test_every_method_goes_round_in_one_line(name):
    mixer = read_mixer(name)
    assert mixer == mixsage.get(name)()
    changed = read_mixer(f"{name}(prob=0.25, per_sample=True)")
    assert (changed.prob, changed.per_sample) == (0.25, True)
    assert read_mixer(write_mixer(changed)) == changed
    assert write_mixer(mixer) == f"{type(mixer).__name__}()"


def test_settings_that_are_composed_go_round():
    text = "SAGE(truncation=0.5, search=Full(), blend=Paste(), saliency=FineGrained())"
    mixer = read_mixer(text)
    assert isinstance(mixer.search, mixsage.Full)
    assert isinstance(mixer.blend, mixsage.Paste)
    assert read_mixer(write_mixer(mixer)) == mixer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SAGE(search=Ful())", "did you mean 'Full'"),
        ("SAGE(truncation='much')", "SAGE: truncation must be a number, got 'much'"),
        ("SAGE(prob=0.5, prob=0.6)", "cannot read|given twice"),
        ("SAGE(**{})", "has no meaning here"),
        ("SAGE(prob=open('x'))", "is no literal value"),
        ("__import__('os').system('x')", "cannot read"),
        ("SAGE(", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_what_is_no_method_is_named_and_never_run(text, message):
    with pytest.raises(ValueError, match=message):
        read_mixer(text)


def test_models_with_arguments():
    assert read_call("a.b:make(depth=3, wide=True)") == Call("a.b:make", {"depth": 3, "wide": True})
    assert str(read_call("make(name='x')")) == "make(name='x')"
    with pytest.raises(ValueError, match="name the arguments, as in make"):
        read_call("make(3)")


# ---------------------------------------------------------------------------------------------------------------- schedules


def rates(settings, steps):
    return [learning_rate(settings, step, steps) for step in range(settings.epochs * steps)]


def torchs(make, count):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    schedule = make(optimizer)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(("epochs", "steps", "warmup"), [(10, 7, 0.15), (3, 50, 0.3), (1, 10, 0.5), (60, 50, 0.15)])
def test_one_cycle_is_torchs(epochs, steps, warmup):
    ours = rates(Optimisation(schedule="onecycle", lr=0.2, warmup=warmup, epochs=epochs), steps)
    total = epochs * steps
    theirs = torchs(
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.2, total_steps=total, pct_start=warmup, cycle_momentum=False
        ),
        total,
    )
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_steps_are_torchs():
    ours = rates(Optimisation(schedule="step", lr=0.2, milestones=(2, 5), lr_decay=0.1, epochs=7), 4)
    theirs = torchs(lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 20], 0.1), 28)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_a_cosine_rises_in_a_line_falls_to_nearly_nothing_and_never_jumps():
    ours = rates(Optimisation(schedule="cosine", lr=0.2, warmup=0.1, epochs=10), 10)
    assert ours[:10] == pytest.approx([0.02 * k for k in range(1, 11)])
    assert ours[9:] == sorted(ours[9:], reverse=True)
    assert 0 < ours[-1] < 1e-3
    assert max(abs(a - b) for a, b in pairwise(ours)) < 0.021
    assert rates(Optimisation(schedule="cosine", lr=0.2, warmup=0.0, epochs=2), 3)[0] == 0.2
    assert set(rates(Optimisation(schedule="constant", lr=0.2, epochs=2), 3)) == {0.2}
