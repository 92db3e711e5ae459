"""Sets that `datasets` keeps: made here, read by the code that reads those of the hub."""

import io

import pytest
import torch

from image_files import class_folders, noise

pytest.importorskip("torchvision")
pytest.importorskip("datasets")

import datasets
from torchvision.transforms.v2.functional import to_pil_image

from mixsage.data import CorruptImage, DataError, feed, load
from mixsage.data.hub import Address

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
IMAGES = datasets.Image()
LABELS = datasets.ClassLabel(names=["cat", "dog"])


def rows(labels, first=0, side=12, kind=LABELS, column="label", image="image"):
    """A split: image k is noise of the seed first + k."""
    pictures = [to_pil_image(noise(side, side, first + k)) for k in range(len(labels))]
    features = datasets.Features({image: IMAGES, column: kind})
    return datasets.Dataset.from_dict({image: pictures, column: labels}, features=features)


def kept(tmp_path, **splits):
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "kept")
    return f"hf:{tmp_path / 'kept'}"


def test_a_saved_set(tmp_path):
    name = kept(tmp_path, train=rows([0, 1, 1]), test=rows([1, 0], first=10))
    data = load(name)
    assert data.name == name
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 1, 1]
    assert data.test.labels.tolist() == [1, 0]
    assert torch.equal(data.train.pixels, torch.stack([noise(seed=seed) for seed in range(3)]))
    assert torch.equal(data.test.read(1), noise(seed=11))
    assert data.test.name(1) == f"{name} test[1]"


def test_a_single_split(tmp_path):
    rows([0, 1]).save_to_disk(tmp_path / "one")
    data = load(f"hf:{tmp_path / 'one'}")
    assert (len(data.train), data.test, data.validation) == (2, None, None)


def test_splits_by_their_names(tmp_path):
    both = load(kept(tmp_path, train=rows([0, 1]), validation=rows([1]), test=rows([0, 0, 0])))
    assert (len(both.test), len(both.validation)) == (3, 1)
    (tmp_path / "more").mkdir()
    one = load(kept(tmp_path / "more", train=rows([0, 1]), validation=rows([1])))
    assert (len(one.test), one.validation) == (1, None)


def test_a_folder_of_images_as_datasets_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, count in (("train", 3), ("test", 1)):
        class_folders(tmp_path / "images" / split, {"a": count, "b": count})
    data = load(f"hf:{tmp_path / 'images'}")
    assert data.classes == ("a", "b")
    assert sorted(data.train.labels.tolist()) == [0, 0, 0, 1, 1, 1]
    seen = {tuple(image.flatten().tolist()) for image in data.train.pixels}
    assert seen == {tuple(noise(seed=seed).flatten().tolist()) for seed in range(6)}


def test_a_set_with_its_files_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "owner" / "name"
    place.mkdir(parents=True)
    rows([0, 1, 0]).to_parquet(place / "train-00000.parquet")
    assert len(load("hf:owner/name", folder=tmp_path).train) == 3


def test_large_images_stream(tmp_path):
    data = load(kept(tmp_path, train=rows([0, 1] * 4, side=120)), image_size=48)
    assert data.train.pixels is None
    assert torch.equal(data.train.read(5), noise(120, 120, 5))
    alone, workers = (
        list(feed(data.train, None, data, batch_size=3, train=True, seed=0, device="cpu", workers=count).batches(1))
        for count in (0, 2)
    )
    assert all(torch.equal(one, other) for pair in zip(alone, workers, strict=True) for one, other in zip(*pair, strict=True))
    assert alone[0].images.shape == (3, 3, 48, 48)


@pytest.mark.parametrize(
    ("kind", "labels", "classes"),
    [(datasets.Value("string"), ["b", "a", "b"], ("a", "b")), (datasets.Value("int64"), [7, 10, 7], ("7", "10"))],
)
def test_labels_that_are_no_classes_yet(tmp_path, kind, labels, classes):
    name = kept(tmp_path, train=rows(labels, kind=kind), test=rows(labels[:1], kind=kind))
    data = load(name)
    assert data.classes == classes
    assert data.train.labels.tolist() == [classes.index(str(label)) for label in labels]
    assert data.test.labels.tolist() == [classes.index(str(labels[0]))]


def test_labels_that_the_training_images_do_not_have(tmp_path):
    kind = datasets.Value("string")
    with pytest.raises(DataError, match=r"test has the label 'z', which the training images do not have"):
        load(kept(tmp_path, train=rows(["a", "b"], kind=kind), test=rows(["z"], kind=kind)))


def test_one_label_only(tmp_path):
    with pytest.raises(DataError, match="all images have one label"):
        load(kept(tmp_path, train=rows(["a", "a"], kind=datasets.Value("string"))))


def test_withheld_labels(tmp_path, caplog):
    """Competitions keep the labels of their test images: the validation split takes their place."""
    with caplog.at_level("INFO", "mixsage.data"):
        data = load(kept(tmp_path, train=rows([0, 1]), validation=rows([1, 0, 1]), test=rows([-1, -1])))
    assert (len(data.test), data.validation) == (3, None)
    assert "the split 'test' has no labels" in caplog.text


def test_missing_labels_in_training(tmp_path):
    with pytest.raises(DataError, match="train has images without a label"):
        load(kept(tmp_path, train=rows([0, 1, -1])))


def test_other_column_names_and_several_labels(tmp_path):
    coarse = rows([0, 1, 1], column="coarse", image="picture")
    both = coarse.add_column("fine", [2, 0, 1]).cast_column("fine", datasets.ClassLabel(names=["x", "y", "z"]))
    assert load(kept(tmp_path, train=coarse)).train.labels.tolist() == [0, 1, 1]
    (tmp_path / "two").mkdir()
    name = kept(tmp_path / "two", train=both)
    with pytest.raises(DataError, match=r"which column is the label\? It may be: coarse or fine\..*; say .*kept\?label=COLUMN"):
        load(name)
    assert load(f"{name}?label=fine").classes == ("x", "y", "z")
    assert load(f"{name}?label=coarse&image=picture").classes == ("cat", "dog")
    with pytest.raises(DataError, match=r"no label column 'other'; which column is the label\?"):
        load(f"{name}?label=other")
    with pytest.raises(DataError, match=r"no image column 'other'; which column is the image\? It may be: picture"):
        load(f"{name}?label=fine&image=other")


def test_no_images_and_no_training_split(tmp_path):
    table = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    with pytest.raises(DataError, match=r"which column is the image\? It may be: none\. There are text, label"):
        load(kept(tmp_path, train=table))
    (tmp_path / "more").mkdir()
    with pytest.raises(DataError, match="has no split 'train' to learn from; it has test"):
        load(kept(tmp_path / "more", test=rows([0, 1])))


@pytest.mark.parametrize("what", ["damaged", "absent"])
def test_damaged_and_absent_images(tmp_path, what, caplog):
    files = []
    for seed in range(4):
        file = io.BytesIO()
        to_pil_image(noise(seed=seed)).save(file, "PNG")
        files.append({"bytes": file.getvalue(), "path": None})
    files[2] = {"bytes": b"nothing", "path": None} if what == "damaged" else None
    features = datasets.Features({"image": IMAGES, "label": LABELS})
    name = kept(tmp_path, train=datasets.Dataset.from_dict({"image": files, "label": [0, 1, 0, 1]}, features=features))
    with pytest.raises(CorruptImage, match=r"train\[2\] (holds no image|cannot be read as an image)"):
        load(name)
    data = load(name, skip_corrupt=True)
    assert data.train.labels.tolist() == [0, 1, 1]
    assert "skipped 1 of 4 images" in caplog.text


def test_a_set_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="hf:nobody/nothing cannot be loaded: "):
        load("hf:nobody/nothing", folder=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be loaded: "):
        load(f"hf:{tmp_path / 'empty'}")


def test_an_unknown_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "owner" / "name"
    place.mkdir(parents=True)
    rows([0, 1, 0]).to_parquet(place / "train-00000.parquet")
    with pytest.raises(DataError, match=r"cannot be loaded: .*other"):
        load("hf:owner/name:other", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf:cifar10", Address("cifar10", None, None, None)),
        ("hf:owner/name", Address("owner/name", None, None, None)),
        ("hf:owner/name:small", Address("owner/name", "small", None, None)),
        ("hf:owner/name:small?label=fine_label&image=img", Address("owner/name", "small", "img", "fine_label")),
    ],
)
def test_addresses(text, address):
    assert Address.of(text) == address


def test_addresses_that_are_none():
    with pytest.raises(DataError, match="names no data set; expected hf:owner/name"):
        load("hf:")
    with pytest.raises(DataError, match="'lable'; did you mean 'label'"):
        load("hf:owner/name?lable=x")
