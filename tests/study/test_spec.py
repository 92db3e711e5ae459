"""A study's file to its runs: combinations, names that stay, errors that say the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixsage.study.spec import comparable, read_study
from mixsage.training import Config, settings_of

BASE = """
seeds = [0, 1]
[settings]
model = "small_convnet"
epochs = 2
"""


def study(tmp_path: Path, text: str):
    file = tmp_path / "study.toml"
    file.write_text(text)
    return read_study(file)


def test_a_grid_is_every_combination_for_every_seed(tmp_path):
    found = study(tmp_path, BASE + '[grid]\nmethod = ["clean", "sage"]\nlr = [0.1, 0.2]\n')
    assert [run.arm for run in found.runs[:4]] == ["clean, 0.1", "clean, 0.2", "sage, 0.1", "sage, 0.2"]
    assert [run.seed for run in found.runs] == [0] * 4 + [1] * 4, (
        "seed by seed, so that a study that is cut short compares all arms"
    )
    assert {(run.config.method.method, run.config.optimisation.lr) for run in found.runs} == {
        (method, lr) for method in ("clean", "sage") for lr in (0.1, 0.2)
    }
    assert all(run.config.run.seed == run.seed and run.config.optimisation.epochs == 2 for run in found.runs)


def test_arms_have_names_settings_and_seeds_of_their_own(tmp_path):
    found = study(
        tmp_path, BASE + '[[arms]]\nmethod = "clean"\n[[arms]]\nname = "long"\nmethod = "clean"\nepochs = 4\nseeds = [7]\n'
    )
    assert [(run.arm, run.seed, run.config.optimisation.epochs) for run in found.runs] == [
        ("clean", 0, 2),
        ("clean", 1, 2),
        ("long", 7, 4),
    ]


def test_names_are_the_same_whenever_it_is_read_and_differ_where_settings_do(tmp_path):
    text = BASE + '[[arms]]\nmethod = "sage"\n'
    first, again = study(tmp_path, text), study(tmp_path, text)
    other = study(tmp_path, text.replace("epochs = 2", "epochs = 3"))
    comfort = study(tmp_path, text.replace("epochs = 2", 'epochs = 2\nloggers = []\ndevice = "cpu"'))
    names = [run.name for run in first.runs]
    assert names == [run.name for run in again.runs] == [run.name for run in comfort.runs]
    assert not set(names) & {run.name for run in other.runs}


def test_settings_at_their_defaults_do_not_mark_a_run():
    assert comparable(settings_of(Config())) == {}


def test_a_recipe_lies_beside_the_study(tmp_path):
    (tmp_path / "recipe.toml").write_text("epochs = 9\nlr = 0.05\n")
    (run,) = study(tmp_path, 'recipe = "recipe.toml"\n[settings]\nepochs = 3\n[[arms]]\nmethod = "mixup"\n').runs
    assert (run.config.optimisation.epochs, run.config.optimisation.lr) == (3, 0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('seed = [0]\n[[arms]]\nmethod = "clean"\n', "did you mean 'seeds'"),
        ("seeds = [0]\n", "names no arms"),
        ('seeds = []\n[[arms]]\nmethod = "clean"\n', "list of whole numbers"),
        ('[[arms]]\nmethod = "clean"\nepoch = 3\n', "did you mean 'epochs'"),
        ('baseline = "cleen"\n[[arms]]\nmethod = "clean"\n', "did you mean 'clean'"),
        ('[[arms]]\nmethod = "clean"\n[[arms]]\nmethod = "clean"\n', "twice"),
        ("[[arms]]\nepochs = 3\n", "needs a name or a method"),
        ("[[arms\n", "no valid TOML"),
        ("arms = 3\n", "arms must be a list of tables"),
        ('arms = ["clean"]\n', "arms must be a list of tables"),
        ("grid = 4\n", "grid must be a table"),
        ("settings = 4\n", "settings must be a table"),
        ("fewshot = 3\n", "fewshot must be a table"),
        ("recipe = 5\n", "recipe must be a path"),
        ("baseline = 3\n", "baseline must be the name of an arm"),
        ('cores = "two"\n', "cores must be a whole number"),
        ("cores = 0\n", "at least 1 core"),
        ('[[arms]]\nmethod = "clean"\nseed = 4\n', "seed is not a setting of a study; give seeds"),
        ('[settings]\nout = "elsewhere"\n', "out is not a setting of a study; give --out"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        study(tmp_path, text)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(ValueError, match="there is no study"):
        read_study(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "recipes" / "studies").glob("*.toml")), ids=lambda file: file.stem
)
def test_our_studies_can_be_read(file):
    assert read_study(file).runs
