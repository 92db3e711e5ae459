"""What comes out of a run: predictions, exports, events, pictures, progress."""

import csv
import io
import json
import re

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("safetensors")
pytest.importorskip("torchvision")

from image_files import save
from mixsage import data
from mixsage.data import decode, feed
from mixsage.training.export import export
from mixsage.training.predict import load_model, predict
from mixsage.training.progress import Bar, Lines
from runs import tiny

CLASSES = list(data.CLASSES)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("run"), epochs=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The first test images of the sample as files: one in a folder below, one with a name that CSV must quote, and another kind of file."""
    folder = tmp_path_factory.mktemp("images")
    pixels = data.load("sample").test.pixels
    for name, image in zip(["a.png", "b, c.png", "more/d.png"], pixels, strict=False):
        save(folder / name, image)
    (folder / "notes.txt").write_text("no image")
    return folder


def expected(run, count):
    """What evaluation makes of the first test images."""
    model, _ = load_model(run.path)
    sample = data.load("sample")
    batches = feed(sample.test, torch.arange(count), sample, batch_size=count, train=False, seed=0, device="cpu")
    with torch.no_grad():
        return model(next(iter(batches.batches(0))).images)


# ------------------------------------------------------------------------------------------------------------------ predict


def test_predictions_are_those_of_the_evaluation(run, images):
    rows = list(csv.DictReader(io.StringIO("\n".join(predict(run.path, [images], top_k=3, batch_size=2)))))
    assert [row["image"] for row in rows] == [str(images / name) for name in ("a.png", "b, c.png", "more/d.png")]
    shares, places = expected(run, 3).softmax(1).topk(3)
    for row, share, place in zip(rows, shares.tolist(), places.tolist(), strict=True):
        assert [row[f"class_{k}"] for k in (1, 2, 3)] == [CLASSES[index] for index in place]
        assert [float(row[f"share_{k}"]) for k in (1, 2, 3)] == pytest.approx(share, abs=1e-4)


def test_predictions_as_json_lines(run, images):
    (line,) = predict(run.path, [images / "a.png"], top_k=10, form="jsonl")
    found = json.loads(line)
    assert found["image"] == str(images / "a.png")
    assert sorted(entry["class"] for entry in found["classes"]) == sorted(CLASSES)
    assert sum(entry["share"] for entry in found["classes"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 11}, r"top_k must lie in \[1, 10\]"),
        ({"top_k": 0}, r"top_k must lie in \[1, 10\]"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"device": "gpu"}, "unknown device 'gpu'; did you mean 'cpu'"),
        ({"device": "cuda:one"}, "unknown device 'cuda:one'; behind the colon stands which one it is"),
    ],
)
def test_predictions_that_cannot_be(run, images, options, message):
    with pytest.raises(ValueError, match=message):
        list(predict(run.path, [images], **options))


def test_images_that_cannot_be_predicted(run, images, tmp_path, caplog):
    with pytest.raises(ValueError, match=f"there is no image {images / 'x.png'}"):
        list(predict(run.path, [images / "x.png"]))
    with pytest.raises(ValueError, match="no images in"):
        list(predict(run.path, [tmp_path]))
    with pytest.raises(ValueError, match="no images; give image files, or folders of them"):
        list(predict(run.path, []))
    save(tmp_path / "good.png", torch.zeros(1, 28, 28, dtype=torch.uint8))
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"bad\.png cannot be read as an image"):
        list(predict(run.path, [tmp_path]))
    lines = list(predict(run.path, [tmp_path], skip_corrupt=True))
    assert len(lines) == 2
    assert str(tmp_path / "good.png") in lines[1]
    assert "skipped" in caplog.text
    assert "bad.png" in caplog.text


def test_the_best_epochs_weights_where_there_are_any(run, images, tmp_path):
    assert len(list(predict(run.path, [images], which="best"))) == 4
    other = tiny(tmp_path / "other", epochs=1, val_share=0.0)
    with pytest.raises(RuntimeError, match="the run held out no images to choose an epoch by; take the final weights"):
        list(predict(other.path, [images], which="best"))


# ------------------------------------------------------------------------------------------------------------------- export


def test_an_export_of_torch_has_the_logits_for_any_number_of_images(run, tmp_path):
    file = export(run.path, out=tmp_path / "new" / "model.pt2")
    loaded = torch.export.load(file).module()
    logits = expected(run, 5)
    model, about = load_model(run.path)
    for count in (1, 2, 5):
        images = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(loaded(images), model(images), rtol=1e-4, atol=1e-5)
    assert logits.shape == (5, 10)
    card = json.loads(file.with_suffix(".json").read_text())
    assert card == {name: about[name] for name in ("channels", "size", "mean", "std", "classes")}
    assert card["classes"] == CLASSES


@pytest.mark.parametrize("name", ["run.pt2", "run.json", "best.safetensors", "final.safetensors"])
def test_an_export_overwrites_nothing_of_its_run(run, name):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="would overwrite what is to be kept; choose another name"):
        export(run.path, out=run.path / name)
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        export(run.path, out=run.path)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_an_export_of_onnx_has_the_logits_for_any_number_of_images(run, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    file = export(run.path, form="onnx", out=tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(file))
    model, _ = load_model(run.path)
    for count in (1, 3):
        images = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        (logits,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), model(images).detach(), rtol=1e-3, atol=1e-4)


# ----------------------------------------------------------------------------------------------------------------- the folder


def test_the_record_of_a_run_says_what_it_was(run):
    record = json.loads(run.description.read_text())
    assert record["settings"]["seed"] == 0
    assert record["settings"]["model"] == "small_convnet"
    assert record["classes"] == CLASSES
    assert record["images"] == {"train": 120, "val": 10, "test": 2000}
    assert record["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {"commit", "machine", "command"} <= record.keys()


def test_a_line_an_epoch(run):
    (line,) = run.history()
    assert {
        "epoch",
        "train_loss",
        "train_top1",
        "clean_loss",
        "mixed_loss",
        "val_top1",
        "val_loss",
        "test_top1",
        "test_loss",
    } <= line.keys()
    assert {"lr", "seconds", "total_seconds", "images_per_second"} <= line.keys()


def test_the_picture_shows_images_above_and_mixes_below(tmp_path):
    mixed, plain = (decode(tiny(tmp_path / method, epochs=1, method=method).picture, method) for method in ("mixup", "clean"))
    assert mixed.shape[1] > 1.8 * plain.shape[1]
    assert mixed.shape[2] == plain.shape[2]
    torch.testing.assert_close(mixed[:, : plain.shape[1] - 2], plain[:, :-2], rtol=0, atol=0)


def test_tensorboard_has_each_epoch_once_though_one_was_run_again(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from mixsage.training import train
    from mixsage.training.checkpoint import all_of
    from runs import configured

    settings = {"loggers": ["tensorboard", "csv"], "epochs": 3}
    run = tiny(tmp_path, **settings)
    all_of(run.checkpoints)[-1].unlink()
    run.weights.unlink()
    train(configured(tmp_path, **settings), resume=True)
    events = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    scalars = events.Scalars("train_loss")
    assert [entry.step for entry in scalars] == [1, 2, 3]
    assert [entry.value for entry in scalars] == pytest.approx([line["train_loss"] for line in run.history()])
    assert sorted(path.parent.name for path in run.path.glob("csv/*/metrics.csv")) == ["from-epoch-1", "from-epoch-3"]


# ----------------------------------------------------------------------------------------------------------------- progress

RECORD = {
    "epoch": 2,
    "train_loss": 1.5,
    "train_top1": 50.0,
    "val_top1": 40.0,
    "lr": 0.1,
    "images_per_second": 1234.5,
    "seconds": 3.21,
}


def test_lines(capsys, monkeypatch):
    from mixsage.training import progress

    now = iter([0.0, 0.0, 30.0, 61.0, 61.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    lines = Lines()
    lines.begin(epochs=20, steps=100, done=100, title="a run")
    lines.step(2, torch.tensor(1.25), 10)
    lines.step(2, torch.tensor(1.25), 10)
    lines.epoch(RECORD)
    assert capsys.readouterr().out.splitlines() == [
        "a run",
        "epoch  2/20  step 2/100  loss 1.2500  0 img/s  about 16 h 04 min left",
        "epoch  2/20  loss 1.5000  val 40.00 %  train 50.00 %  lr 0.1  1,234 img/s  3.2 s",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    rich = pytest.importorskip("rich.console")
    screen = io.StringIO()
    plain = rich.Console
    monkeypatch.setattr(rich, "Console", lambda **options: plain(file=screen, force_terminal=True, width=100, **options))
    bar = Bar()
    bar.begin(epochs=3, steps=4, done=0, title="[odd] name")
    bar.epoch(RECORD)
    bar.shown -= 10
    bar.step(2, torch.tensor(0.5), 20)
    bar.bar.refresh()
    bar.end()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "[odd] name" in shown
    assert "epoch 2/3  loss 1.5000  val 40.00 %" in shown
    assert re.search(r"epoch 2/3 .*loss 0\.500  val 40\.00 %  \d+ img/s left", shown)
