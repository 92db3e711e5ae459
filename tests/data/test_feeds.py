"""Feeds against slow obvious loops; orders that depend on the seed alone; several processes; starts in the middle."""

import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest
import torch

from mixsage.data import DataError, DataSet, Images, ResidentFeed, StreamedFeed, feed, generator
from mixsage.data.resident import Crops, crop, draw_crops

# On a machine with one core, torch advises against two workers; from 3.12 on, Python against forking beside the threads of torch.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

CLASSES, MEAN, STD = ("a", "b", "c"), (0.3, 0.4, 0.5), (0.2, 0.3, 0.25)


def dataset_of(count=50, height=9, width=7, **options):
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (count, 3, height, width), generator=source, dtype=torch.uint8)
    labels = torch.randint(3, (count,), generator=source)
    settings = {"size": (height, width), "padding": 2} | options
    return DataSet(
        name="made", train=Images(labels, pixels=pixels), test=None, classes=CLASSES, channels=3, mean=MEAN, std=STD, **settings
    )


def feed_of(dataset, indices=None, **options):
    settings = {"batch_size": 8, "train": True, "seed": 0, "device": "cpu", "workers": 0} | options
    return feed(dataset.train, indices, dataset, **settings)


def everything(feed, epoch=0, start=0):
    return list(feed.batches(epoch, start))


def same(one, other):
    return len(one) == len(other) and all(
        torch.equal(first, second) for pair in zip(one, other, strict=True) for first, second in zip(*pair, strict=True)
    )


def to_bytes(images):
    """What a batch shows, before it was normalised."""
    pixels = (images * torch.tensor(STD).view(1, 3, 1, 1) + torch.tensor(MEAN).view(1, 3, 1, 1)) * 255
    assert (pixels - pixels.round()).abs().max() < 1e-3
    return pixels.round().to(torch.uint8)


def padded_by(image, padding):
    channels, height, width = image.shape
    black = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    black[:, padding : padding + height, padding : padding + width] = image
    return black


def slow_crop(image, top, left, flip, padding):
    """The oracle: pixel by pixel."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            row, column = i + top - padding, (width - 1 - j if flip else j) + left - padding
            if 0 <= row < height and 0 <= column < width:
                out[:, i, j] = image[:, row, column]
    return out


resident_or_not = pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])


@pytest.fixture(autouse=True)
def _torchvision(request):
    """Only images that live on the device do without it."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("resident") is False:
        pytest.importorskip("torchvision")


# ---------------------------------------------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("shape", "padding"), [((3, 9, 7), 2), ((1, 5, 5), 0), ((3, 4, 6), 5)])
def test_crop_against_the_loop(shape, padding, channels_last):
    source = torch.Generator().manual_seed(1)
    images = torch.randint(1, 256, (40, *shape), generator=source, dtype=torch.uint8)
    crops = draw_crops(40, padding, True, source)
    slow = torch.stack([slow_crop(image, int(t), int(l), bool(f), padding) for image, t, l, f in zip(images, *crops, strict=True)])
    fast = crop(images, crops, padding, channels_last=channels_last)
    assert torch.equal(fast, slow)
    assert fast.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_crops_are_uniform_and_half_of_them_mirrored():
    crops = draw_crops(20_000, 2, True, torch.Generator().manual_seed(0))
    places = Counter(zip(crops.top.tolist(), crops.left.tolist(), strict=True))
    assert set(places) == {(i, j) for i in range(5) for j in range(5)}
    assert all(abs(count - 800) < 5 * 800**0.5 for count in places.values())
    assert abs(int(crops.flip.sum()) - 10_000) < 5 * 5000**0.5
    assert not draw_crops(100, 2, False, torch.Generator()).flip.any()


@pytest.mark.parametrize("channels_last", [False, True])
def test_resident_batches_against_the_loop(channels_last):
    dataset = dataset_of()
    batches = feed_of(dataset, resident=True, channels_last=channels_last)
    order = torch.randperm(50, generator=generator(0, "order", 3))[:48].tolist()
    crops = draw_crops(48, 2, True, generator(0, "crops", 3))
    seen = 0
    for images, labels, index in batches.batches(epoch=3):
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        for image, label, row in zip(images, labels.tolist(), index.tolist(), strict=True):
            assert row == order[seen]
            assert label == int(dataset.train.labels[row])
            view = slow_crop(
                dataset.train.pixels[row], int(crops.top[seen]), int(crops.left[seen]), bool(crops.flip[seen]), padding=2
            )
            expected = (view.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
            torch.testing.assert_close(image.double(), expected.double(), rtol=1e-5, atol=1e-5)
            seen += 1
    assert seen == 48


@resident_or_not
@pytest.mark.parametrize("padding", [None, 0, 1])
def test_every_view_is_a_crop_of_its_image_padded_with_black(resident, padding):
    dataset = dataset_of()
    reach = 2 if padding is None else padding
    places = Counter()
    for images, _, index in feed_of(dataset, resident=resident, padding=padding).batches(0):
        for view, row in zip(to_bytes(images), index.tolist(), strict=True):
            image = dataset.train.pixels[row]
            found = [
                (i, j, flip)
                for i in range(2 * reach + 1)
                for j in range(2 * reach + 1)
                for flip in (False, True)
                if torch.equal(slow_crop(image, i, j, flip, reach), view)
            ]
            assert len(found) == 1
            places[found[0]] += 1
    assert sum(places.values()) == 48
    assert len(places) > (10 if reach else 1)


@resident_or_not
@pytest.mark.parametrize("options", [{"train": False}, {"augment": False}])
def test_without_augmentation_images_are_as_they_are(resident, options):
    dataset = dataset_of()
    for images, labels, index in feed_of(dataset, resident=resident, **options).batches(0):
        assert torch.equal(to_bytes(images), dataset.train.pixels[index])
        assert torch.equal(labels, dataset.train.labels[index])


@resident_or_not
def test_without_flip(resident):
    dataset = dataset_of(flip=False, padding=0)
    for images, _, index in feed_of(dataset, resident=resident).batches(0):
        assert torch.equal(to_bytes(images), dataset.train.pixels[index])


@resident_or_not
def test_a_feed_does_not_change_the_images(resident):
    dataset = dataset_of()
    before = dataset.train.pixels.clone()
    for images, labels, index in feed_of(dataset, resident=resident, train=False).batches(0):
        images.zero_()
        labels.zero_()
        index.zero_()
    assert torch.equal(dataset.train.pixels, before)
    assert dataset.train.labels.any()
    again = next(feed_of(dataset, resident=resident, train=False).batches(0))
    assert again.index.tolist() == list(range(8))


def test_both_feeds_normalise_alike():
    pytest.importorskip("torchvision")
    dataset = dataset_of()
    assert same(everything(feed_of(dataset, resident=True, train=False)), everything(feed_of(dataset, resident=False, train=False)))


# ------------------------------------------------------------------------------------------------------------------------ order


@resident_or_not
def test_training_shows_each_image_once_an_epoch_in_an_order_of_its_own(resident):
    batches = feed_of(dataset_of(), resident=resident, drop_last=False)
    orders = [torch.cat([batch.index for batch in batches.batches(epoch)]).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert all(order != sorted(order) for order in orders)


@resident_or_not
def test_the_last_batch(resident):
    dataset = dataset_of()
    whole, rest = feed_of(dataset, resident=resident), feed_of(dataset, resident=resident, drop_last=False)
    assert (len(whole), whole.samples) == (6, 48)
    assert (len(rest), rest.samples) == (7, 50)
    assert [len(batch.labels) for batch in everything(whole)] == [8] * 6
    assert [len(batch.labels) for batch in everything(rest)] == [8] * 6 + [2]


@resident_or_not
def test_evaluation_goes_in_order_and_misses_none(resident):
    indices = torch.tensor([3, 1, 40, 7, 8, 9, 10, 11, 49])
    batches = feed_of(dataset_of(), indices, resident=resident, train=False)
    assert torch.cat([batch.index for batch in everything(batches)]).tolist() == indices.tolist()
    assert (len(batches), batches.samples) == (2, 9)


@resident_or_not
def test_a_part_of_the_images(resident):
    indices = torch.arange(0, 50, 2)
    seen = [
        row
        for batch in everything(feed_of(dataset_of(), indices, resident=resident, drop_last=False))
        for row in batch.index.tolist()
    ]
    assert sorted(seen) == indices.tolist()


@resident_or_not
def test_seed_and_epoch_say_it_all(resident):
    dataset = dataset_of()
    one, other = feed_of(dataset, resident=resident), feed_of(dataset, resident=resident)
    everything(other, epoch=5)
    assert same(everything(one, 1), everything(other, 1))
    assert not same(everything(one, 1), everything(one, 2))
    assert not same(everything(one, 1), everything(feed_of(dataset, resident=resident, seed=1), 1))


@resident_or_not
def test_an_image_is_cropped_anew_in_each_epoch(resident):
    dataset = dataset_of(count=8)
    views = [
        {
            int(row): image
            for images, _, index in everything(feed_of(dataset, resident=resident), e)
            for image, row in zip(images, index, strict=True)
        }
        for e in range(3)
    ]
    assert sum(torch.equal(views[0][row], views[1][row]) for row in range(8)) < 4
    assert sum(torch.equal(views[1][row], views[2][row]) for row in range(8)) < 4


@resident_or_not
@pytest.mark.parametrize("start", [0, 1, 4, 6, 7])
def test_a_start_in_the_middle_of_an_epoch(resident, start):
    batches = feed_of(dataset_of(), resident=resident, drop_last=False)
    whole = everything(batches, epoch=2)
    assert same(everything(feed_of(dataset_of(), resident=resident, drop_last=False), 2, start), whole[start:])


@resident_or_not
def test_global_random_state_is_left_alone_and_not_used(resident):
    torch.manual_seed(0)
    batches = feed_of(dataset_of(), resident=resident)
    before = torch.get_rng_state()
    first = everything(batches)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same(everything(batches), first)


# -------------------------------------------------------------------------------------------------------------------- processes


@resident_or_not
@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_the_batches_of_one(resident, world):
    dataset = dataset_of()
    alone = everything(feed_of(dataset, resident=resident), epoch=1)
    ranks = [everything(feed_of(dataset, resident=resident, rank=rank, world=world), epoch=1) for rank in range(world)]
    together = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in zip(*ranks, strict=True)]
    assert same(alone, together)
    assert {len(batch.labels) for batches in ranks for batch in batches} == {8 // world}


@resident_or_not
@pytest.mark.parametrize("count", [48, 49, 50, 51])
@pytest.mark.parametrize("world", [2, 3])
def test_evaluation_is_exact_to_the_image(resident, world, count):
    dataset = dataset_of(count=51)
    indices = torch.arange(count)
    feeds = [feed_of(dataset, indices, train=False, resident=resident, rank=rank, world=world) for rank in range(world)]
    batches = [everything(one) for one in feeds]
    assert [len(one) for one in feeds] == [len(some) for some in batches]
    assert all(len(batch.labels) for some in batches for batch in some)
    assert sorted(row for some in batches for batch in some for row in batch.index.tolist()) == list(range(count))
    assert {one.samples for one in feeds} == {count}
    middle = [everything(one, start=2) for one in feeds]
    assert all(same(later, some[2:]) for later, some in zip(middle, batches, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": 3}, "8 cannot be shared equally by 3 processes; make it a multiple of 3"),
        ({"world": 2, "batch_size": 7}, "7 cannot be shared equally"),
        ({"world": 16, "train": False}, "8 is less than the 16 processes"),
        (
            {"world": 4, "drop_last": False},
            "the last batch of an epoch has 2 images, which 4 processes cannot share equally; set drop_last=True",
        ),
        ({"batch_size": 51}, "50 images fill no batch of 51; lower batch_size"),
        ({"padding": -1}, "at least 0"),
    ],
)
def test_batches_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        feed_of(dataset_of(), **options)


def test_no_images_at_all():
    with pytest.raises(DataError, match="at least one image"):
        feed_of(dataset_of(), torch.tensor([], dtype=torch.int64))
    with pytest.raises(ValueError, match=r"indices must be \[n\] int64"):
        feed_of(dataset_of(), torch.ones(50, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"rank must lie in \[0, 2\)"):
        feed_of(dataset_of(), rank=2, world=2)


# ---------------------------------------------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers):
    pytest.importorskip("torchvision")
    dataset = dataset_of()
    alone, many = feed_of(dataset, resident=False), feed_of(dataset, resident=False, workers=workers)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for epoch, start in ((0, 0), (1, 0), (1, 4), (0, 2)):  # the same workers serve all of them
        assert same(everything(many, epoch, start), everything(alone, epoch, start))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_was_given_up(workers):
    pytest.importorskip("torchvision")
    batches = feed_of(dataset_of(), resident=False, workers=workers)
    list(islice(batches.batches(0), 2))
    assert same(everything(batches, 1), everything(feed_of(dataset_of(), resident=False), 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_newer_pass_ends_the_older(workers):
    pytest.importorskip("torchvision")
    batches = feed_of(dataset_of(), resident=False, workers=workers)
    older, newer = batches.batches(0), batches.batches(1)
    next(older)
    first = next(newer)
    with pytest.raises(RuntimeError, match="a newer pass over this feed"):
        next(older)
    assert same([first, *newer], everything(feed_of(dataset_of(), resident=False), 1))


def test_a_size_that_does_not_fit_is_named():
    pytest.importorskip("torchvision")
    dataset = dataset_of(height=5, width=5)
    small = Images(dataset.train.labels, reader=lambda i: dataset.train.pixels[i][:, :3], names=[f"{i}.png" for i in range(50)])
    batches = feed(small, None, dataset, batch_size=8, train=False, seed=0, device="cpu", workers=0)
    with pytest.raises(DataError, match=r"0\.png has 3×5 pixels, crops of 5×5 need"):
        everything(batches)


# ----------------------------------------------------------------------------------------------------------------------- choice


def test_what_lives_on_the_device_and_what_streams(caplog):
    dataset = dataset_of()
    assert isinstance(feed_of(dataset), ResidentFeed)
    assert not caplog.records
    with caplog.at_level("INFO", "mixsage.data"):
        assert isinstance(feed_of(dataset, resident=False), StreamedFeed)
        assert isinstance(feed_of(dataset_of(augmentation="resize")), StreamedFeed)
        elsewhere = Images(dataset.train.labels, reader=lambda i: dataset.train.pixels[i])
        assert isinstance(feed(elsewhere, None, dataset, batch_size=8, train=True, seed=0, device="cpu"), StreamedFeed)
    assert [record.getMessage().partition(": ")[2].partition(": ")[2] for record in caplog.records] == [
        "resident=False",
        "its images are scaled one by one",
        "its images are not held in memory",
    ]


def test_what_cannot_live_on_the_device():
    with pytest.raises(DataError, match="resident=True, but its images are scaled one by one"):
        feed_of(dataset_of(augmentation="resize"), resident=True)


def test_a_crop_of_nothing_but_padding_is_black():
    images = torch.full((1, 1, 2, 2), 9, dtype=torch.uint8)
    crops = Crops(torch.tensor([0]), torch.tensor([0]), torch.tensor([False]))
    assert crop(images, crops, 2).tolist() == [[[[0, 0], [0, 0]]]]


def test_torch_is_all_that_the_sample_needs():
    """With every optional package out of reach."""
    script = """
import sys
for name in ("numpy", "PIL", "torchvision", "datasets", "lightning", "tyro"):
    sys.modules[name] = None
import mixsage.data as data
sample = data.load("sample")
batches = data.feed(sample.train, None, sample, batch_size=100, train=True, seed=0, device="cpu")
assert len(list(batches.batches(0))) == 50
try:
    data.load("cifar10")
except ModuleNotFoundError as error:
    assert "pip install 'mixsage[train]'" in str(error), error
    print("named")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("named\n", 0), done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("indices", [None, torch.arange(0, 50, 3)])
def test_the_device_makes_no_difference(indices):
    dataset = dataset_of()
    here, there = (feed_of(dataset, indices, device=device, resident=True) for device in ("cpu", "cuda"))
    for one, other in zip(everything(here), everything(there), strict=True):
        torch.testing.assert_close(one.images, other.images.cpu(), rtol=1e-6, atol=1e-6)
        assert torch.equal(one.labels, other.labels.cpu())
        assert torch.equal(one.index, other.index.cpu())
        assert other.images.device.type == "cuda"
