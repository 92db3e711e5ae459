"""Published sets: the real CIFAR-10 and Fashion-MNIST where their files are at hand, the others in miniature; damage, absence, downloads."""

import gc
import gzip
import http.server
import os
import pickle
import threading
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from image_files import class_folders, noise, save

pytest.importorskip("torchvision")
pytest.importorskip("PIL")

from torchvision.datasets.utils import calculate_md5

from mixsage.data import NAMES, DataError, feed, imagenets, load, load_sample, mini_imagenet_classes, per_class, published
from mixsage.data.sources import home

REAL = Path(os.environ.get("MIXSAGE_DATA") or "/nowhere")
CIFAR = REAL / "cifar-10-batches-py"
FASHION = next((path for path in (REAL / "FashionMNIST" / "raw", Path("/usr/share/datasets/fashion-mnist")) if path.is_dir()), None)
needs_cifar = pytest.mark.skipif(not CIFAR.is_dir(), reason="no cifar-10-batches-py in MIXSAGE_DATA")
needs_fashion = pytest.mark.skipif(FASHION is None, reason="no files of Fashion-MNIST here")


@pytest.fixture(scope="module")
def cifar():
    return load("cifar10", folder=REAL)


# ---------------------------------------------------------------------------------------------------------------------- CIFAR-10


@needs_cifar
def test_cifar10(cifar):
    assert (len(cifar.train), len(cifar.test), cifar.channels, cifar.size, cifar.padding) == (50_000, 10_000, 3, (32, 32), 2)
    assert cifar.classes[3] == "cat"
    assert cifar.train.labels.bincount().tolist() == [5000] * 10
    assert cifar.test.labels.bincount().tolist() == [1000] * 10
    pixels = cifar.train.pixels.double()
    mean, std = pixels.mean(dim=(0, 2, 3)) / 255, pixels.std(dim=(0, 2, 3), correction=0) / 255
    assert (mean - torch.tensor(cifar.mean)).abs().max() < 3e-4
    assert (std - torch.tensor(cifar.std)).abs().max() < 3e-4


@needs_cifar
def test_cifar10_is_what_torchvision_reads(cifar):
    from torchvision.datasets import CIFAR10
    from torchvision.transforms.v2.functional import pil_to_tensor

    for images, train in ((cifar.train, True), (cifar.test, False)):
        theirs = CIFAR10(REAL, train=train)
        for row in range(0, len(theirs), 997):
            image, label = theirs[row]
            assert torch.equal(images.read(row), pil_to_tensor(image))
            assert int(images.labels[row]) == label


@needs_cifar
def test_mixsage_data_may_name_the_folder_itself(monkeypatch, cifar):
    monkeypatch.setenv("MIXSAGE_DATA", str(CIFAR))
    assert torch.equal(load("cifar10").test.labels, cifar.test.labels)


@needs_cifar
def test_a_training_epoch_of_cifar10(cifar):
    chosen = per_class(cifar.train.labels, 50)
    batches = feed(cifar.train, chosen, cifar, batch_size=100, train=True, seed=0, device="cpu")
    seen = list(batches.batches(0))
    assert sorted(torch.cat([batch.index for batch in seen]).tolist()) == chosen.tolist()
    assert all(torch.equal(batch.labels, cifar.train.labels[batch.index]) for batch in seen)
    images = torch.cat([batch.images for batch in seen])
    assert images.mean().abs() < 0.2  # black borders pull it below 0
    assert 0.9 < images.std() < 1.2


@needs_cifar
def test_cifar10_at_other_sizes(cifar):
    small, large = (load("cifar10", folder=REAL, image_size=side) for side in (16, 224))
    assert small.train.pixels.shape == (50_000, 3, 16, 16)
    assert (large.size, large.augmentation) == ((224, 224), "resize")
    assert large.train.pixels.shape == (50_000, 3, 32, 32)
    batch = next(feed(large.test, None, large, batch_size=2, train=False, seed=0, device="cpu", workers=0).batches(0))
    assert batch.images.shape == (2, 3, 224, 224)


@needs_cifar
@pytest.mark.parametrize(("file", "damage"), [("data_batch_3", "changed"), ("test_batch", "missing"), ("batches.meta", "changed")])
def test_damage_to_cifar10(tmp_path, file, damage):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for path in CIFAR.iterdir():
        if path.name != file:
            (folder / path.name).symlink_to(path)
        elif damage == "changed":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            (folder / file).write_bytes(content)
    expected = "is damaged: its MD5 sum is not the published" if damage == "changed" else "is missing"
    with pytest.raises(DataError, match=rf"{file} {expected}.*put the original in its place, or remove .* downloaded again"):
        load("cifar10", folder=tmp_path)


def test_cifar100_in_miniature(tmp_path, monkeypatch):
    """The published layout with three images, and checksums to go with them."""
    from torchvision.datasets import CIFAR100

    images = torch.stack([noise(32, 32, seed) for seed in range(3)])
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    contents = {
        "train": {"data": images.flatten(1).numpy(), "fine_labels": [4, 99, 0], "coarse_labels": [1, 2, 3]},
        "test": {"data": images[:1].flatten(1).numpy(), "fine_labels": [7], "coarse_labels": [0]},
        "meta": {"fine_label_names": [f"class {k}" for k in range(100)]},
    }
    for file, content in contents.items():
        (folder / file).write_bytes(pickle.dumps(content))
    for split in ("train", "test"):
        monkeypatch.setattr(CIFAR100, f"{split}_list", [[split, calculate_md5(folder / split)]])
    monkeypatch.setattr(CIFAR100, "meta", CIFAR100.meta | {"md5": calculate_md5(folder / "meta")})
    data = load("cifar100", folder=tmp_path)
    assert torch.equal(data.train.pixels, images)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([4, 99, 0], [7])
    assert data.classes[99] == "class 99"
    assert data.mean[0] == pytest.approx(129.3 / 255)


# ----------------------------------------------------------------------------------------------------------------- Fashion-MNIST


@needs_fashion
def test_fashion_mnist():
    data = load("fashion-mnist", folder=FASHION)
    assert (len(data.train), len(data.test), data.channels, data.size) == (60_000, 10_000, 1, (28, 28))
    images, labels = load_sample("train")
    first = per_class(data.train.labels, 500)
    assert torch.equal(data.train.pixels[first], images)
    assert torch.equal(data.train.labels[first], labels)
    pixels = data.train.pixels.double() / 255
    assert data.mean[0] == pytest.approx(pixels.mean().item(), abs=5e-5)
    assert data.std[0] == pytest.approx(pixels.std().item(), abs=5e-5)
    assert data.classes == load("sample").classes


@needs_fashion
def test_fashion_mnist_unpacked_or_damaged(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in published.FASHION_MD5:
        packed = FASHION / f"{file}.gz"
        (raw / file).write_bytes(gzip.decompress(packed.read_bytes()) if packed.is_file() else (FASHION / file).read_bytes())
    assert len(load("fashion-mnist", folder=tmp_path).test) == 10_000
    content = bytearray((raw / "t10k-labels-idx1-ubyte").read_bytes())
    content[100] ^= 1
    (raw / "t10k-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is damaged: its MD5 sum"):
        load("fashion-mnist", folder=tmp_path)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        load("fashion-mnist", folder=tmp_path)
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(content))[:100])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz cannot be unpacked"):
        load("fashion-mnist", folder=tmp_path)


# ---------------------------------------------------------------------------------------------------------------- small ImageNets


def make_tiny(root, monkeypatch, sorted_test=False):
    """Tiny-ImageNet in miniature: the published layout, 3 classes."""
    folder = root / "tiny-imagenet-200"
    classes = ("n01", "n02", "n03")
    for k, name in enumerate(classes):
        for i in range(2):
            save(folder / "train" / name / "images" / f"{name}_{i}.png", noise(64, 64, 10 * k + i))
        (folder / "train" / name / f"{name}_boxes.txt").write_text("boxes")
        save(folder / "val" / (name if sorted_test else "images") / f"val_{2 - k}.png", noise(64, 64, 100 + 2 - k))
    (folder / "wnids.txt").write_text("\n".join(classes))
    if not sorted_test:
        table = "".join(f"val_{i}.png\t{classes[2 - i]}\t0\t0\t62\t62\n" for i in range(3))
        (folder / "val" / "val_annotations.txt").write_text(table)
    monkeypatch.setattr(imagenets, "TINY_COUNTS", {"train": 6, "val": 3})
    return folder


@pytest.mark.parametrize("sorted_test", [False, True])
def test_tiny_imagenet(tmp_path, monkeypatch, sorted_test):
    folder = make_tiny(tmp_path, monkeypatch, sorted_test)
    for place in (tmp_path, folder):
        data = load("tiny-imagenet", folder=place)
        assert data.classes == ("n01", "n02", "n03")
        assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert (data.size, data.padding, data.augmentation) == ((64, 64), 4, "crop")
        for row, name in enumerate(data.test.names):
            number = int(Path(name).stem.removeprefix("val_"))
            assert int(data.test.labels[row]) == 2 - number
            assert torch.equal(data.test.read(row), noise(64, 64, 100 + number))


def test_tiny_imagenet_that_was_not_unpacked_to_its_end(tmp_path, monkeypatch):
    folder = make_tiny(tmp_path, monkeypatch)
    (folder / "train" / "n02" / "images" / "n02_1.png").unlink()
    with pytest.raises(DataError, match=r"train holds 5 images, the published set has 6; remove .*tiny-imagenet-200"):
        load("tiny-imagenet", folder=tmp_path)


def test_the_classes_of_mini_imagenet():
    parts = mini_imagenet_classes()
    assert {part: len(classes) for part, classes in parts.items()} == {"train": 64, "val": 16, "test": 20}
    assert len({name for classes in parts.values() for name in classes}) == 100
    assert all(name.startswith("n") and len(name) == 9 for classes in parts.values() for name in classes)


@pytest.mark.parametrize("layout", ["all", "mini-imagenet/all", "parts"])
def test_mini_imagenet(tmp_path, layout):
    parts = mini_imagenet_classes()
    for part, classes in parts.items():
        root = tmp_path / {"all": "", "mini-imagenet/all": "mini-imagenet", "parts": part}[layout]
        for name in classes:
            save(root / name / "1.png", noise(84, 84, int(name[1:])))
    for name, part in (("mini-imagenet", "train"), ("mini-imagenet-val", "val"), ("mini-imagenet-test", "test")):
        data = load(name, folder=tmp_path)
        assert data.classes == parts[part]
        assert data.test is None
        assert (data.size, data.augmentation) == ((84, 84), "crop")
        assert sorted(data.train.labels.tolist()) == list(range(len(parts[part])))
        for row in (0, len(data.train) - 1):
            assert torch.equal(data.train.read(row), noise(84, 84, int(data.classes[data.train.labels[row]][1:])))


def test_mini_imagenet_at_original_sizes_is_scaled_to_84(tmp_path):
    for name in mini_imagenet_classes()["val"]:
        save(tmp_path / name / "1.png", noise(90, 100 + int(name[-1])))
    assert load("mini-imagenet-val", folder=tmp_path).size == (84, 84)


def test_mini_imagenet_that_is_absent_or_incomplete(tmp_path):
    with pytest.raises(DataError, match=r"no images of mini-ImageNet in .*bring your own, in class folders .* \(n01532829"):
        load("mini-imagenet", folder=tmp_path)
    first = mini_imagenet_classes()["train"][0]
    class_folders(tmp_path, {first: 1, "n00": 1})
    with pytest.raises(DataError, match="has no folder for 63 of the 64 classes"):
        load("mini-imagenet", folder=tmp_path)


# ------------------------------------------------------------------------------------------------------------ names and downloads


@pytest.mark.parametrize(
    ("name", "near"),
    [("cifra10", "cifar10"), ("CIFAR-100", "cifar100"), ("fashion_mnist", "fashion-mnist"), ("tinyimagenet", "tiny-imagenet")],
)
def test_an_unknown_name(name, near):
    with pytest.raises(DataError, match=rf"unknown data set '{name}'; did you mean '{near}'\? valid: .*, or hf:owner/name"):
        load(name)


def test_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIXSAGE_DATA", str(tmp_path / "data"))
    assert home(None) == tmp_path / "data"
    assert home(Path("~/here")) == tmp_path / "here"
    monkeypatch.delenv("MIXSAGE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert home(None) == tmp_path / "caches" / "mixsage"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert home(None) == tmp_path / ".cache" / "mixsage"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        with suppress(ConnectionError):  # torchvision asks where an address leads to, and hangs up
            super().copyfile(source, outputfile)


@pytest.fixture
def server(tmp_path):
    """A web server of what lies in tmp_path/served."""
    (tmp_path / "served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served"))) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # torchvision leaves connections open where a download fails


def test_a_download_happens_once_though_many_want_it(tmp_path, monkeypatch, server, caplog):
    folder = make_tiny(tmp_path / "made", monkeypatch)
    archive = tmp_path / "served" / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*"):
            file.write(path, path.relative_to(folder.parent))
    monkeypatch.setattr(imagenets, "TINY_URL", f"{server}/tiny-imagenet-200.zip")
    monkeypatch.setattr(imagenets, "TINY_MD5", calculate_md5(archive))
    with ThreadPoolExecutor(3) as pool:
        sets = list(pool.map(lambda _: load("tiny-imagenet", folder=tmp_path / "new"), range(3)))
    assert all(torch.equal(one.train.pixels, load("tiny-imagenet", folder=folder).train.pixels) for one in sets)
    assert caplog.text.count("downloading") == 1


def test_a_download_with_a_wrong_checksum_is_refused(tmp_path, monkeypatch, server):
    (tmp_path / "served" / "tiny-imagenet-200.zip").write_bytes(b"something else")
    monkeypatch.setattr(imagenets, "TINY_URL", f"{server}/tiny-imagenet-200.zip")
    with pytest.raises(DataError, match=r"downloading it failed \(File not found or corrupted"):
        load("tiny-imagenet", folder=tmp_path)
    assert not (tmp_path / "tiny-imagenet-200").exists()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("cifar", "fashion", "tiny"))])
def test_no_network(tmp_path, monkeypatch, name, server):
    from torchvision import datasets

    gone = f"{server}/gone/"
    for kind in (datasets.CIFAR10, datasets.CIFAR100):
        monkeypatch.setattr(kind, "url", gone + kind.filename)
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [gone])
    monkeypatch.setattr(imagenets, "TINY_URL", gone + "tiny.zip")
    with pytest.raises(
        DataError, match=rf"{name} is not in .*new, and downloading it failed .*; get {gone}.* MIXSAGE_DATA, or --data-dir"
    ):
        load(name, folder=tmp_path / "new")
