"""Whatever goes wrong ends in one clear line and a status that is not 0, and nothing is lost."""

import json
import re

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("tyro")
pytest.importorskip("torchvision")
pytest.importorskip("safetensors")

from image_files import png_of_16_bits, save
from mixsage import cli
from mixsage.training import RunFolder
from mixsage.training.checkpoint import all_of, load
from runs import TINY, rewrite, tiny

GIVEN = [part for name, value in TINY.items() if name != "loggers" for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def fails(capsys):
    """Runs the command, which must fail as a user sees it, and gives what it said."""

    def run(*arguments, status=2):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        assert code == status, captured
        assert "Traceback" not in captured.err
        return captured.err.strip()

    return run


@pytest.fixture
def train(fails, tmp_path):
    """`mixsage train` on the sample, with further arguments that make it fail."""
    return lambda *arguments: fails("train", *GIVEN, "--loggers", "--out", tmp_path / "run", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    {
        "out of range": (["--lr", "-1"], "mixsage: lr must be positive and finite, got -1.0"),
        "no share": (["--val-share", "1"], "mixsage: val_share must lie in [0, 1), got 1.0"),
        "no division": (["--microbatches", "3"], "mixsage: batch_size 20 does not divide into 3 microbatches on 1 processes"),
        "an unknown method": (["--method", "sag"], "mixsage: unknown method 'sag'; did you mean 'sage'?"),
        "an unknown setting of a method": (
            ["--method", "SAGE(truncaton=0.5)"],
            "mixsage: unknown setting of SAGE 'truncaton'; did you mean 'truncation'?",
        ),
        "a bad setting of a method": (["--method", "SAGE(truncation=2)"], "mixsage: truncation must lie in [0, 1], got 2"),
        "an unknown model": (["--model", "small_convnt"], "mixsage: unknown model 'small_convnt'; did you mean 'small_convnet'?"),
        "an unknown argument of a model": (
            ["--model", "small_convnet(depth=3)"],
            "mixsage: the model 'small_convnet' does not take these arguments",
        ),
        "an unknown factory": (["--model", "runs:nothing", "--width", "None"], "mixsage: the module 'runs' has no 'nothing'"),
        "an unknown module": (
            ["--model", "no_such:model", "--width", "None"],
            "mixsage: cannot import 'no_such' for the model 'no_such:model'",
        ),
        "the width of a user's own model": (["--model", "runs:dropping"], "mixsage: width narrows mixsage's own models"),
        "no model": (
            ["--model", "runs:no_model", "--width", "None"],
            "mixsage: 'runs:no_model' returned str, expected a torch.nn.Module",
        ),
        "pretrained of ours": (["--pretrained"], "mixsage: pretrained weights exist for timm models, not for 'small_convnet'"),
        "no such weights": (["--weights", "nowhere.pt"], "mixsage: there is no file of weights nowhere.pt"),
        "unknown data": (["--data", "smple"], "mixsage: unknown data set 'smple'; did you mean 'sample'?"),
        "no such folder": (["--data", "./no/such/folder"], "mixsage: there is no folder no/such/folder"),
        "no such folder here": (["--data", "./photos"], "mixsage: there is no folder photos"),
        "a model for other images": (
            ["--model", "runs:other_images", "--width", "None"],
            "mixsage: the model 'runs:other_images' cannot take images [2, 1, 28, 28]: ",
        ),
        "a model for other classes": (
            ["--model", "runs:other_classes", "--width", "None"],
            "mixsage: the model 'runs:other_classes' makes [2, 7] of 2 images, expected logits [2, 10], as the data have 10 classes",
        ),
        "a model of no logits": (
            ["--model", "runs:no_logits", "--width", "None"],
            "mixsage: the model 'runs:no_logits' makes dict of 2 images, expected logits [2, 10]",
        ),
        "a lazy model": (
            ["--model", "runs:lazy", "--width", "None"],
            "mixsage: the model 'runs:lazy' has layers that do not know their sizes yet",
        ),
        "a batch larger than the data": (
            ["--batch-size", "4000"],
            "mixsage: a batch of 4000 is larger than the training set of 120 images; set batch_size to at most 120",
        ),
        "too few images of a class": (
            ["--per-class", "501"],
            "mixsage: class 'T-shirt/top' has 500 images, 501 of each class were asked for",
        ),
        "an unknown device": (["--device", "gpu"], "mixsage: unknown device 'gpu'"),
        "16 bits on a CPU": (["--precision", "fp16"], "mixsage: precision fp16 needs a GPU; on the CPU, choose bf16 or fp32"),
        "an average of shards": (["--strategy", "fsdp", "--ema", "0.9"], "mixsage: ema needs whole weights on every process"),
        "smoothing of the other loss": (
            ["--loss", "bce", "--label-smoothing", "0.1"],
            "mixsage: label_smoothing goes with loss ce",
        ),
        "mixing that ends before it begins": (
            ["--mix-from", "3", "--mix-until", "2"],
            "mixsage: mix_until 2 lies before mix_from 3",
        ),
        "milestones out of order": (["--milestones", "2", "1"], "mixsage: milestones must rise, got [2, 1]"),
        "a recipe that is not there": (["--recipe", "nowhere.toml"], "mixsage: there is no recipe nowhere.toml"),
        "two recipes": (["--recipe", "a.toml", "--recipe=b.toml"], "mixsage: --recipe is given twice"),
        "a seed beyond torch's": (["--seed", str(2**63)], "mixsage: seed must lie between -1000000000000000 and 1000000000000000"),
        "--resume among others": (["--resume", "run"], "mixsage: --resume goes alone"),
    }.values(),
)
def test_wrong_settings_are_one_clear_line(train, tmp_path, arguments, message):
    said = train(*arguments)
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epocs", "3"], "Perhaps you meant: --epochs"),
        (["--optimizer", "sdg"], "invalid choice 'sdg' for argument '--optimizer'. Expected one of ('sgd', 'adamw')."),
        (["--epochs", "three"], "Error parsing --epochs: invalid literal for int() with base 10: 'three'"),
    ],
)
def test_wrong_flags_are_answered_with_the_nearest(train, arguments, message):
    """In boxes of tyro's, which wrap lines."""
    assert message in " ".join(re.sub("[╭╮╰╯│─]|--+(?= |$)", " ", train(*arguments)).split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_cuda_device(train):
    assert "mixsage: there is no cuda device" in train("--device", "cuda")


def test_more_gpus_than_there_are(train, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    said = train("--device", "cuda", "--devices", "2")
    assert said == "mixsage: devices must be at most 1, the GPUs of this machine; got 2"


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "an unknown key": ("epoch = 3", "unknown setting 'epoch'; did you mean 'epochs'?"),
        "of another type": ('epochs = "three"', "epochs must be a whole number, got 'three'"),
        "an unknown choice": ('schedule = "cosin"', "unknown value of schedule 'cosin'; did you mean 'cosine'?"),
        "a table": ("[data]\ndata = 'sample'", "data must be a text, got {'data': 'sample'}"),
        "no TOML": ("epochs 3", "is no valid TOML"),
        "out of range": ("epochs = 0", "epochs must be at least 1, got 0"),
        "no list": ("milestones = 3", "milestones must be a list, got 3"),
    }.values(),
)
def test_a_wrong_recipe_is_named(train, tmp_path, text, message):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    said = train("--recipe", recipe)
    assert said.startswith(f"mixsage: the recipe {recipe}")
    assert message in said


def test_a_folder_that_holds_a_run_is_left_alone(train, tmp_path):
    run = tiny(tmp_path / "run", epochs=1)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert train() == f"mixsage: {run.path} already holds a run; continue it with --resume {run.path}, or choose another --out"
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_out_must_be_given(fails):
    assert fails("train", *GIVEN) == "mixsage: out is missing: name the folder of the run, for example --out runs/first"


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(train):
    said = train("--lr", "1e6", "--schedule", "constant", "--method", "clean")
    assert re.match(
        r"mixsage: the loss of step \d is not finite, so the run stops here; there is no checkpoint yet; a lower lr, ", said
    )


def test_a_run_that_diverges_names_the_last_good_checkpoint(train, tmp_path):
    said = train("--lr", "1e6", "--schedule", "constant", "--epochs", "20", "--checkpoint-steps", "1", "--method", "clean")
    assert re.match(r"mixsage: the (loss of|weights after) step \d (is|are) not finite, .* the last good checkpoint is ", said)
    run = RunFolder(tmp_path / "run")
    newest = all_of(run.checkpoints)[-1]
    assert str(newest) in said
    assert all(value.isfinite().all() for value in load(newest)["model"].values())
    assert not run.complete


def test_weights_that_are_not_finite_never_become_a_checkpoint(train, tmp_path, monkeypatch):
    """The loss of a step is finite, its gradient is not: the next loss would tell, but the checkpoint comes first."""
    from mixsage.training import trainer

    plain = trainer.accumulate

    def overflowing(mixer, model, *arguments, **options):
        step = plain(mixer, model, *arguments, **options)
        if len(all_of(tmp_path / "run" / "checkpoints")) == 1:
            model.head.weight.grad.fill_(torch.inf)
        return step

    monkeypatch.setattr(trainer, "accumulate", overflowing)
    said = train("--checkpoint-steps", "2")
    newest = tmp_path / "run" / "checkpoints" / "step-000000002.ckpt"
    assert said.startswith(
        f"mixsage: the loss of step 4 is not finite, so the run stops here; the last good checkpoint is {newest}"
    ) or (said.startswith("mixsage: the weights after step 4 are not finite") and str(newest) in said)
    assert all_of(tmp_path / "run" / "checkpoints") == [newest]


def test_out_of_memory_says_which_batch_it_tried(train, tmp_path):
    said = train("--model", "runs:greedy(most=5)", "--width", "None")
    assert said == ("mixsage: out of memory with 20 images at a time (batch_size 20); try --microbatches 2, or --precision bf16")
    said = train(
        "--out",
        tmp_path / "other",
        "--model",
        "runs:greedy(most=5)",
        "--width",
        "None",
        "--microbatches",
        "2",
        "--precision",
        "bf16",
    )
    assert said == "mixsage: out of memory with 10 images at a time (batch_size 20, microbatches 2); try --microbatches 4"
    arguments = ["train", *GIVEN, "--loggers", "--model", "runs:greedy(most=5)", "--width", "None", "--microbatches", "4"]
    assert cli.main([*arguments, "--out", str(tmp_path / "third")]) == 0


def test_the_same_command_mended_may_use_the_folder_where_nothing_was_kept(train, tmp_path):
    """Who is told to try microbatches should not have to think of another name as well."""
    train("--model", "runs:greedy(most=5)", "--width", "None")
    assert not (tmp_path / "run" / "run.json").exists()
    more = ["--model", "runs:greedy(most=5)", "--width", "None", "--microbatches", "4", "--out", str(tmp_path / "run")]
    assert cli.main(["train", *GIVEN, "--loggers", *more]) == 0


def test_a_run_with_something_to_lose_keeps_its_folder(train, tmp_path):
    train("--lr", "1e6", "--schedule", "constant", "--epochs", "20", "--checkpoint-steps", "1", "--method", "clean")
    assert all_of(tmp_path / "run" / "checkpoints")
    assert "already holds a run" in train()


def photos(folder, **classes):
    """A folder of class folders with so many images each."""
    for number, (name, count) in enumerate(classes.items()):
        for i in range(count):
            save(folder / name / f"{i}.png", torch.full((3, 8, 8), 20 * number + i, dtype=torch.uint8))
    return folder


def begun(folder, run, **settings):
    return tiny(run, data=str(folder), per_class=None, batch_size=4, epochs=1, val_share=0.0, **settings)


def test_classes_that_disagree_with_the_checkpoint(fails, tmp_path):
    folder = photos(tmp_path / "photos", cats=4, dogs=4)
    run = begun(folder, tmp_path / "run")
    run.weights.unlink()
    (folder / "dogs").rename(folder / "owls")
    assert fails("train", "--resume", run.path) == (
        "mixsage: the checkpoint was trained on 2 classes (cats, dogs), the data have 2 classes (cats, owls); "
        "give the data that the run began with"
    )


def test_images_that_were_added_since(fails, tmp_path):
    folder = photos(tmp_path / "photos", cats=4, dogs=4)
    run = begun(folder, tmp_path / "run")
    run.weights.unlink()
    save(folder / "cats" / "new.png", torch.zeros(3, 8, 8, dtype=torch.uint8))  # too few to fill another batch
    assert fails("train", "--resume", run.path) == (
        "mixsage: the run began with 8 train images, the data now have 9 train images; bring back the data as they were, or begin a new run"
    )


def test_weights_for_another_number_of_classes(train, tmp_path):
    run = tiny(tmp_path / "first", epochs=1)
    folder = photos(tmp_path / "photos", cats=14, dogs=14)
    said = train("--data", folder, "--weights", run.weights, "--val-share", 0)
    assert said.startswith(f"mixsage: the weights in {run.weights} do not fit the model:")
    assert "head.weight is [10, 16], the model has [2, 16]" in said


def test_a_folder_of_images_that_cannot_be_used(train, tmp_path):
    """Every fault of the data is tested with the data; here, that it arrives as one line."""
    folder = photos(tmp_path / "photos", cats=14, dogs=14)
    (folder / "dogs" / "3.png").write_bytes(b"no image")
    said = train("--data", folder)
    assert said.startswith("mixsage: ")
    assert "3.png" in said
    assert "--skip-corrupt" in said
    assert len(said.splitlines()) == 1


def test_a_class_of_one_image_is_named(train, tmp_path):
    assert train("--data", photos(tmp_path / "photos", cats=20, owls=1), "--per-class", "None") == (
        "mixsage: class 'owls' has 1 image, too few to hold one out; add images, or hold out nothing: a share of 0 (--val-share 0)"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    {
        "no class folders": (lambda folder: folder.mkdir(), "must hold one folder for each class"),
        "one class only": (lambda folder: photos(folder, cats=4), "holds one class only, 'cats'"),
        "an empty class": (
            lambda folder: (photos(folder, cats=4, dogs=4), (folder / "owls").mkdir()),
            "no image in the class folder",
        ),
        "a file": (lambda folder: folder.write_text("x"), "is not a folder"),
    }.values(),
)
def test_folders_that_are_none_of_class_folders(train, tmp_path, make, message):
    folder = tmp_path / "photos"
    make(folder)
    said = train("--data", folder)
    assert said.startswith("mixsage: ")
    assert message in said
    assert str(folder) in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_images_of_every_kind_and_size_are_learnt_from(tmp_path, caplog):
    """Grey, transparent, palette and 16-bit ones, one smaller than any crop, and a damaged one that is skipped and counted."""
    from PIL import Image

    folder = photos(tmp_path / "photos", cats=4, dogs=4)
    Image.new("L", (30, 20), 7).save(folder / "cats" / "grey.png")
    Image.new("RGBA", (3, 3), (9, 9, 9, 100)).save(folder / "cats" / "small.png")
    Image.new("P", (20, 20), 3).save(folder / "dogs" / "palette.png")
    (folder / "dogs" / "deep.png").write_bytes(png_of_16_bits(torch.full((3, 20, 20), 30_000)))
    (folder / "dogs" / "zz.png").write_bytes(b"no image")
    out = tmp_path / "run"
    settings = ["--batch-size", "4", "--epochs", "1", "--val-share", "0", "--image-size", "16", "--workers", "0", "--device", "cpu"]
    model = ["--model", "small_convnet", "--width", "4", "--loggers", "--out", str(out)]
    assert cli.main(["train", "--data", str(folder), "--skip-corrupt", *settings, *model]) == 0
    assert json.loads((out / "run.json").read_text())["images"] == {"train": 12}
    assert "skipped 1 of 13 images" in caplog.text
    assert "zz.png" in caplog.text


def test_a_damaged_or_newer_record_of_a_run(fails, tmp_path):
    run = tiny(tmp_path / "run", epochs=1)
    run.weights.unlink()
    rewrite(run.description, lambda content: json.dumps(json.loads(content) | {"format": 2}).encode())
    assert "was written by a newer mixsage (format 2, this one reads 1); update mixsage" in fails("train", "--resume", run.path)
    rewrite(run.description, lambda content: content[:50])
    assert fails("train", "--resume", run.path).startswith(f"mixsage: {run.description} is damaged")
    for other in (b"{}", b"[]"):
        run.description.write_bytes(other)
        assert (
            fails("train", "--resume", run.path)
            == f"mixsage: {run.description} is no record of a run of mixsage: it has no settings"
        )


def test_a_newer_checkpoint(fails, tmp_path):
    run = tiny(tmp_path / "run", epochs=1)
    run.weights.unlink()
    rewrite(all_of(run.checkpoints)[-1], lambda content: content.replace(b"checkpoint 1 ", b"checkpoint 7 ", 1))
    said = fails("train", "--resume", run.path)
    assert "was written by a newer mixsage (format 7, this one reads 1); update mixsage" in said
    assert len(all_of(run.checkpoints)) == 1


@pytest.mark.parametrize("command", [["train", "--resume"], ["predict"], ["export"]])
def test_no_run_where_one_was_named(fails, tmp_path, command):
    images = [tmp_path] if command == ["predict"] else []
    said = fails(*command, tmp_path / "nothing", *images)
    assert said == f"mixsage: there is no run in {tmp_path / 'nothing'}: run.json is missing"


@pytest.mark.parametrize("command", [["predict"], ["export"]])
def test_a_run_that_is_not_complete(fails, tmp_path, command):
    run = tiny(tmp_path / "run", epochs=1)
    run.weights.unlink()
    images = [tmp_path] if command == ["predict"] else []
    said = fails(*command, run.path, *images)
    assert said == f"mixsage: the run in {run.path} is not complete; continue it with: mixsage train --resume {run.path}"


def test_an_unknown_command(fails):
    assert fails("trian").startswith("mixsage: unknown command 'trian'; did you mean 'train'?")
