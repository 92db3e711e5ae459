"""Folders of class folders as people have them, in order and in disorder."""

import pickle
import shutil

import pytest
import torch

from image_files import class_folders, noise, save, truncate

pytest.importorskip("torchvision")
pytest.importorskip("PIL")

from mixsage.data import CorruptImage, DataError, feed, load
from mixsage.data.collect import shape_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def batches_of(data, images=None, **options):
    settings = {"batch_size": 4, "train": False, "seed": 0, "device": "cpu", "workers": 0} | options
    return list(feed(images or data.train, None, data, **settings).batches(0))


def test_class_folders(tmp_path):
    data = load(str(class_folders(tmp_path, {"dog": 3, "cat": 2})))
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.test is None
    assert data.validation is None
    assert (data.channels, data.size, data.augmentation, data.padding) == (3, (12, 12), "crop", 2)
    assert torch.equal(data.train.pixels, torch.stack([noise(seed=seed) for seed in range(5)]))
    assert data.train.name(4) == str(tmp_path / "dog" / "004.png")
    assert torch.equal(data.train.read(3), noise(seed=3))


def test_home_and_relative_paths(tmp_path, monkeypatch):
    class_folders(tmp_path / "pictures", {"a": 1, "b": 1})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load("~/pictures").train) == 2
    monkeypatch.chdir(tmp_path)
    assert len(load("pictures").train) == 2
    assert len(load("./pictures").train) == 2


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_train_and_test_folders(tmp_path, name):
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / name, {"a": 1, "b": 3})
    data = load(str(tmp_path))
    assert (len(data.train), len(data.test), data.validation) == (4, 4, None)
    assert data.test.labels.tolist() == [0, 1, 1, 1]


def test_train_validation_and_test_folders(tmp_path):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        class_folders(tmp_path / split, {"a": count, "b": count})
    data = load(str(tmp_path))
    assert [len(images) for images in (data.train, data.validation, data.test)] == [6, 4, 2]


def test_test_images_without_classes_are_no_test_split(tmp_path):
    """As ImageNet comes: the test images have no labels, and val is what models are judged by."""
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "val", {"a": 1, "b": 1})
    save(tmp_path / "test" / "1.png", noise())
    assert len(load(str(tmp_path)).test) == 2


def test_a_class_called_train(tmp_path):
    data = load(str(class_folders(tmp_path, {"bus": 2, "train": 2})))
    assert data.classes == ("bus", "train")
    assert len(data.train) == 4


def test_hidden_folders_and_other_files_are_no_images(tmp_path, caplog):
    class_folders(tmp_path, {"a": 2, "b": 2})
    for path in (".git/x.png", ".ipynb_checkpoints/y.png", "a/.thumbs/z.png", "a/._000.png", "__MACOSX/a/000.png"):
        save(tmp_path / path, noise())
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    with caplog.at_level("INFO", "mixsage.data"):
        data = load(str(tmp_path))
    assert data.classes == ("a", "b")
    assert len(data.train) == 4
    assert any("ignored 1 files that are not images" in message and "notes.txt" in message for message in caplog.messages)


def test_images_in_folders_within_class_folders(tmp_path):
    class_folders(tmp_path, {"a": 1, "b": 1})
    save(tmp_path / "a" / "more" / "9.PNG", noise(seed=9))
    data = load(str(tmp_path))
    assert data.train.labels.tolist() == [0, 0, 1]
    assert torch.equal(data.train.pixels[1], noise(seed=9))


def test_every_kind_of_image_in_one_folder(tmp_path):
    from PIL import Image

    class_folders(tmp_path, {"a": 1, "b": 1})
    for mode in ("L", "LA", "RGBA", "P", "1", "I;16"):
        Image.new(mode, (12, 12)).save(tmp_path / "a" / f"{mode.replace(';', '')}.png")
    Image.new("CMYK", (12, 12)).save(tmp_path / "b" / "cmyk.jpg")
    data = load(str(tmp_path))
    assert data.train.pixels.shape == (9, 3, 12, 12)
    assert batches_of(data, train=True)[0].images.isfinite().all()


# ----------------------------------------------------------------------------------------------------------- errors at the door


def test_no_such_folder(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder .*missing"):
        load(str(tmp_path / "missing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is not a folder"):
        load(str(tmp_path / "file"))


def test_no_class_folders(tmp_path):
    with pytest.raises(DataError, match="one folder for each class, with the images of the class in it; it has none"):
        load(str(tmp_path))
    save(tmp_path / "1.png", noise())
    with pytest.raises(DataError, match="images lie in it directly"):
        load(str(tmp_path))


@pytest.mark.parametrize("inside", ["", "train"])
def test_one_class_only(tmp_path, inside):
    class_folders(tmp_path / inside, {"cats": 3})
    if inside:
        (tmp_path / inside / "cats" / "more").mkdir()
    with pytest.raises(DataError, match=r"holds one class only, '(cats|train)'"):
        load(str(tmp_path))


@pytest.mark.parametrize("inside", ["", "train", "test"])
def test_an_empty_class_folder(tmp_path, inside):
    if inside:
        for split in ("train", "test"):
            class_folders(tmp_path / split, {"a": 1, "b": 1, "c": 1})
    else:
        class_folders(tmp_path, {"a": 1, "b": 1, "c": 1})
    (tmp_path / inside / "b" / "001.png").unlink()
    (tmp_path / inside / "b" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"no image in the class folder .*b; add some, or remove the folder\. Read are \.jpg"):
        load(str(tmp_path))


def test_classes_of_the_test_images(tmp_path, caplog):
    class_folders(tmp_path / "train", {"a": 1, "b": 1, "c": 1})
    class_folders(tmp_path / "test", {"c": 2})
    data = load(str(tmp_path))
    assert data.test.labels.tolist() == [2, 2]
    assert "no images of 2 of 3 classes, 'a' among them" in caplog.text
    class_folders(tmp_path / "test", {"z": 1})
    with pytest.raises(DataError, match="test/z is a class that the training images do not have"):
        load(str(tmp_path))


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_of_nothing(tmp_path, size):
    with pytest.raises(DataError, match="image_size must be at least 1"):
        load(str(tmp_path), image_size=size)


# --------------------------------------------------------------------------------------------------------------- damaged images


@pytest.fixture(params=["in memory", "read as wanted"])
def damaged(request, tmp_path):
    """Eight images, two of them damaged; one only after its header."""
    side = 12 if request.param == "in memory" else 120
    class_folders(tmp_path, {"a": 4, "b": 4}, side, side)
    truncate(tmp_path / "a" / "002.png")
    (tmp_path / "b" / "005.png").write_bytes(b"nothing")
    return tmp_path


def test_damaged_images_are_named(damaged):
    with pytest.raises(CorruptImage, match=r"00[25]\.png cannot be read as an image: .*; repair or remove it, .*--skip-corrupt"):
        load(str(damaged))


def test_damaged_images_are_skipped_counted_and_named(damaged, caplog):
    data = load(str(damaged), skip_corrupt=True)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [data.train.name(row)[-7:] for row in range(6)] == ["000.png", "001.png", "003.png", "004.png", "006.png", "007.png"]
    side = 12 if data.train.pixels is not None else 120
    assert all(torch.equal(data.train.read(row), noise(side, side, seed)) for row, seed in enumerate([0, 1, 3, 4, 6, 7]))
    assert "skipped 2 of 8 images" in caplog.text
    assert "002.png" in caplog.text
    assert "005.png" in caplog.text
    assert sum(len(batch.labels) for batch in batches_of(data)) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_damage_that_the_header_does_not_show_is_named_when_it_is_met(tmp_path, workers):
    class_folders(tmp_path, {"a": 4, "b": 4}, 120, 120)
    truncate(tmp_path / "b" / "006.png")
    data = load(str(tmp_path))
    assert data.train.pixels is None
    with pytest.raises(CorruptImage, match=r"^[^\n]*006\.png cannot be read as an image: [^\n]*; repair or remove it, [^\n]*$"):
        batches_of(data, workers=workers)


def test_nothing_readable_in_a_class(tmp_path):
    class_folders(tmp_path, {"a": 3, "b": 1})
    truncate(tmp_path / "b" / "003.png")
    with pytest.raises(DataError, match="no readable training image remains of the class 'b'"):
        load(str(tmp_path), skip_corrupt=True)


# ----------------------------------------------------------------------------------------------------------------------- sizes


def test_images_of_many_sizes_stream(tmp_path):
    class_folders(tmp_path, {"a": 2, "b": 2})
    save(tmp_path / "a" / "wide.png", noise(3, 70))
    save(tmp_path / "b" / "dot.png", noise(1, 1))
    data = load(str(tmp_path), image_size=32)
    assert (data.size, data.augmentation, data.train.pixels) == ((32, 32), "resize", None)
    for options in ({"train": True}, {"train": False}, {"train": True, "workers": 2}):
        batches = batches_of(data, batch_size=3, **options)
        assert [batch.images.shape for batch in batches] == [(3, 3, 32, 32)] * 2
    assert load(str(tmp_path)).size == (224, 224)


def test_streamed_images_are_the_same_from_any_worker_and_any_start(tmp_path):
    data = load(str(class_folders(tmp_path, {"a": 5, "b": 6}, 100, 130)), image_size=40)
    options = {"train": True, "drop_last": False, "batch_size": 3}
    alone = batches_of(data, **options)
    for workers, start in ((0, 2), (2, 0), (2, 3)):
        later = list(feed(data.train, None, data, seed=0, device="cpu", workers=workers, **options).batches(0, start))
        assert len(later) == 4 - start
        assert all(
            torch.equal(one, other) for pair in zip(alone[start:], later, strict=True) for one, other in zip(*pair, strict=True)
        )


def test_images_travel_to_workers_that_are_started_afresh(tmp_path):
    """Where workers are not forked, what they read is sent to them."""
    data = load(str(class_folders(tmp_path, {"a": 1, "b": 1}, 100, 130)))
    for images in (data.train, load(str(tmp_path), skip_corrupt=True).train):
        again = pickle.loads(pickle.dumps(images))  # noqa: S301  # our own bytes
        assert torch.equal(again.read(1), data.train.read(1))


def test_small_images_are_scaled_once(tmp_path):
    from torchvision.transforms.v2 import functional

    data = load(str(class_folders(tmp_path, {"a": 1, "b": 1}, 48, 48)), image_size=32)
    assert (data.size, data.augmentation, data.padding) == ((32, 32), "crop", 2)
    assert torch.equal(data.train.pixels[0], functional.resize(noise(48, 48), [32, 32], antialias=True))


@pytest.mark.parametrize(
    ("common", "count", "image_size", "expected"),
    [
        ((32, 32), 100, None, ((32, 32), True)),
        ((48, 64), 100, None, ((48, 64), True)),
        ((48, 64), 100, 64, ((64, 64), False)),  # would change their aspect
        ((64, 64), 100, 32, ((32, 32), True)),
        ((32, 32), 100, 64, ((64, 64), True)),
        ((32, 32), 100, 224, ((224, 224), False)),
        ((128, 128), 100, None, ((128, 128), False)),
        ((100, 200), 100, None, ((100, 200), False)),
        ((500, 500), 100, None, ((224, 224), False)),
        ((20, 300), 100, None, ((224, 224), False)),
        ((96, 96), 10**6, None, ((96, 96), False)),  # more than is held in memory
        (None, 100, None, ((224, 224), False)),
        (None, 100, 64, ((64, 64), False)),
    ],
)
def test_what_is_held_in_memory_and_in_which_size(common, count, image_size, expected):
    assert shape_of(common, count, image_size, 224) == expected


def test_a_file_that_vanishes_is_named(tmp_path):
    data = load(str(class_folders(tmp_path, {"a": 2, "b": 2}, 120, 120)))
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(CorruptImage, match=r"002\.png cannot be read as an image: .*No such file"):
        batches_of(data)
