"""Methods as transforms of batches: the samples that torchvision's MixUp takes, the steps of the raw loop."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

import mixsage
from helpers import seeded
from mixsage import SAGE, CutMix, ManifoldMixup, Mixup
from mixsage.integrations.torchvision import Collate, Mixing
from mixsage.loss import cross_entropy
from raw_loop import SEED, assert_same, batches, dataset, network, raw_loop, sgd

MIXERS = {
    "sage": SAGE(num_classes=10, mixed_share=1.0),
    "cutmix": CutMix(num_classes=10),
    "mixup": Mixup(num_classes=10),
    "mixup per sample": Mixup(num_classes=10, per_sample=True, prob=0.7),
}


@pytest.mark.parametrize("name", MIXERS)
def test_three_steps_are_those_of_the_raw_loop(name):
    model = network()
    mix = Mixing(MIXERS[name], model=model, generator=seeded(SEED))
    optimizer = sgd(model)
    for images, labels in batches():
        images, targets = mix(images, labels)
        cross_entropy(model(images), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    # A call leaves the statistics of BatchNorm alone, where the raw loop's clean pass moves them.
    assert_same(model, raw_loop(MIXERS[name]), buffers=name != "sage")


def test_maps_of_ones_own():
    images, labels = batches(1)[0]
    maps = torch.rand(len(images), 28, 28, generator=seeded(2))
    mixed, targets = Mixing(SAGE(num_classes=10), saliency=lambda _: maps, generator=seeded(SEED))(images, labels)
    expected = SAGE(num_classes=10)(images, labels, saliency=maps, generator=seeded(SEED))
    assert torch.equal(mixed, expected[0])
    assert torch.equal(targets, expected[1])


@pytest.mark.parametrize("where", ["call", "collate"])
def test_a_method_that_looks_says_what_it_needs(where):
    with pytest.raises(ValueError, match=r"SAGE needs to know where to look: give model=… or saliency=….*accumulate"):
        (Mixing if where == "call" else Collate)(SAGE(num_classes=10))


@pytest.mark.parametrize("mixer", ["cutmix", CutMix, None])
def test_a_method_is_a_value(mixer):
    with pytest.raises(TypeError, match=r"mixer must be a Mixer, such as CutMix\(num_classes=10\)"):
        Mixing(mixer)


@pytest.mark.parametrize("transform", ["cutmix", CutMix, None])
def test_a_batch_is_collated_by_a_value_too(transform):
    with pytest.raises(
        TypeError, match=r"transform must be a method such as CutMix\(num_classes=10\), or a function of the batch; got "
    ):
        Collate(transform)


def test_no_model_is_needed_where_the_maps_are_uniform():
    images, labels = batches(1)[0]
    mixed, _ = Mixing(SAGE(num_classes=10, saliency=mixsage.Uniform()))(images, labels)
    assert mixed.shape == images.shape


# ------------------------------------------------------------------------------------------------- samples as torchvision takes them


def test_images_and_labels_give_a_tuple_and_one_sample_its_own_form():
    images, labels = batches(1)[0]
    mix = Mixing(CutMix(num_classes=10))
    assert isinstance(mix(images, labels), tuple)
    assert isinstance(mix([images, labels]), list)
    nested = mix({"image": images, "id": "a", "LABELS": labels})
    assert list(nested) == ["image", "id", "LABELS"]
    assert nested["id"] == "a"
    assert nested["LABELS"].shape == (len(labels), 10)


def test_labels_first():
    images, labels = batches(1)[0]
    mixed = Mixing(CutMix(num_classes=10), generator=seeded(1))({"label": labels, "image": tv_tensors.Image(images)})
    expected = CutMix(num_classes=10)(images, labels, generator=seeded(1))
    assert isinstance(mixed["image"], tv_tensors.Image)
    assert torch.equal(mixed["image"], expected[0])
    assert torch.equal(mixed["label"], expected[1])


def test_a_function_finds_the_labels():
    images, labels = batches(1)[0]
    sample = {"image": images, "meta": {"target": labels}}
    mixed = Mixing(Mixup(num_classes=10), labels_getter=lambda sample: sample["meta"]["target"])(sample)
    assert mixed["meta"]["target"].shape == (len(labels), 10)


@pytest.mark.parametrize(
    "sample",
    [
        ({"image": torch.rand(2, 1, 8, 8)},),  # no label
        (torch.rand(2, 1, 8, 8), "cat"),
        (torch.rand(2, 1, 8, 8), torch.zeros(2, 3, 4)),
        (torch.rand(2, 1, 8, 8), torch.zeros(2, 7)),  # 7 classes, not 10
        (tv_tensors.Image(torch.rand(2, 1, 8, 8)), torch.zeros(2).long(), tv_tensors.Mask(torch.zeros(2, 8, 8).byte())),
    ],
)
def test_what_torchvisions_own_refuses_is_refused(sample):
    for transform in (v2.MixUp(num_classes=10), Mixing(Mixup(num_classes=10))):
        with pytest.raises(ValueError, match=r".+"):
            transform(*sample)


def test_indices_need_the_number_of_classes_and_soft_labels_do_not():
    images, labels = batches(1)[0]
    with pytest.raises(ValueError, match="num_classes"):
        Mixing(CutMix())(images, labels)
    assert Mixing(CutMix())(images, torch.eye(10)[labels])[1].shape == (len(labels), 10)


def test_two_batches_of_images_in_one_sample():
    image = tv_tensors.Image(torch.rand(2, 1, 8, 8))
    with pytest.raises(ValueError, match="one batch of images in a sample, got 2"):
        Mixing(Mixup(num_classes=10))({"left": image, "right": image.clone(), "labels": torch.arange(2)})


def test_bytes_are_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"images\.float\(\) / 255"):
        Mixing(CutMix(num_classes=10))(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.arange(2))


def test_videos_are_blended():
    videos = tv_tensors.Video(torch.rand(2, 4, 1, 8, 8))
    mixed, targets = Mixing(Mixup(num_classes=3))(videos, torch.arange(2))
    assert isinstance(mixed, tv_tensors.Video)
    assert targets.shape == (2, 3)


def test_channels_last_and_half_precision_stay():
    images = torch.rand(4, 3, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    mixed, targets = Mixing(CutMix(num_classes=10))(images, torch.arange(4))
    assert mixed.dtype == torch.bfloat16
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert targets.dtype == torch.float32


def test_a_hidden_layer_is_not_mixed_by_a_call():
    images, labels = batches(1)[0]
    mixed, _ = Mixing(ManifoldMixup(num_classes=10, layers=("stage1",)))(images, labels)
    assert mixed.shape == images.shape


@pytest.mark.parametrize("bare", [False, True])
def test_random_choice(bare):
    """Of two methods, either is taken; the choice is torchvision's."""
    images, labels = batches(1)[0]
    boxes, blend = CutMix(num_classes=10, per_sample=True), Mixup(num_classes=10, per_sample=True)
    choose = v2.RandomChoice([boxes, blend] if bare else [Mixing(boxes), Mixing(blend)])
    values = [set(choose(images, labels)[0].unique().tolist()) <= set(images.unique().tolist()) for _ in range(20)]
    assert True in values  # pasted: every pixel is one of the images'
    assert False in values


def test_its_representation_names_the_method():
    assert repr(Mixing(CutMix(num_classes=10))) == "Mixing(CutMix(prob=1.0, per_sample=False, num_classes=10, alpha=1.0))"


# -------------------------------------------------------------------------------------------------------------------- in a loader


def loader(transform, workers, **options):
    return DataLoader(dataset(), batch_size=16, collate_fn=Collate(transform, **options), num_workers=workers)


def first_images(transform, workers, seed=0):
    torch.manual_seed(seed)
    return torch.cat([images for images, _ in loader(transform, workers)])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_seed_reproduces_a_loader(workers):
    mix = CutMix(num_classes=10)
    assert torch.equal(first_images(mix, workers), first_images(mix, workers))
    assert not torch.equal(first_images(mix, workers), first_images(mix, workers, seed=1))


def test_workers_make_choices_of_their_own():
    """Three copies of one batch, the first two mixed in different workers: the default generator is seeded in each."""
    pictures = torch.utils.data.ConcatDataset([dataset(1)] * 3)
    torch.manual_seed(0)
    mixed = DataLoader(pictures, batch_size=16, collate_fn=Collate(Mixup(num_classes=10)), num_workers=2)
    one, two, three = [images for images, _ in mixed]
    assert not torch.equal(one, two)
    assert not torch.equal(one, three)
    again = [images for images, _ in mixed]  # the next epoch
    assert not torch.equal(one, again[0])


def test_a_generator_in_a_worker_is_refused():
    mix = Mixing(CutMix(num_classes=10), generator=seeded())
    assert len(next(iter(loader(mix, 0)))) == 2
    with pytest.raises(ValueError, match="all workers would make the same choices"):
        next(iter(loader(mix, 1)))


def test_a_model_in_a_worker_is_refused():
    with pytest.raises(ValueError, match="a copy of the model that never trains"):
        next(iter(loader(Mixing(SAGE(num_classes=10), model=network()), 1)))


def test_any_pipeline_can_be_wrapped():
    """A collate function of one's own, whose batches are dicts, and a pipeline of v2 behind it."""

    def collate(samples):
        images, labels = default_collate(samples)
        return {"image": images, "label": labels}

    pipeline = v2.Compose([v2.RandomHorizontalFlip(1.0), Mixing(Mixup(num_classes=10, prob=0.0))])
    batch = next(iter(loader(pipeline, 0, collate=collate)))
    torch.testing.assert_close(batch["image"], batches(1)[0][0].flip(-1))
    assert batch["label"].shape == (16, 10)


def test_it_can_be_pickled():
    collate = pickle.loads(pickle.dumps(Collate(CutMix(num_classes=10))))  # noqa: S301  # our own bytes
    assert collate([(torch.rand(1, 8, 8), 3), (torch.rand(1, 8, 8), 4)])[1].shape == (2, 10)
