"""Held-out shares and balanced subsets: stratified, reproducible, exact."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixsage.data import DataError, Images, hold_out, per_class

LABELS = torch.tensor([0] * 50 + [1] * 20 + [2] * 9 + [3] * 2)[torch.randperm(81, generator=torch.Generator().manual_seed(0))]


@given(
    counts=st.lists(st.integers(2, 30), min_size=1, max_size=6),
    share=st.floats(0, 0.99),
    seed=st.integers(0, 5),
)
def test_hold_out_is_stratified_and_loses_nothing(counts, share, seed):
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    train, validation = hold_out(labels, share, seed)
    assert sorted(train.tolist() + validation.tolist()) == list(range(len(labels)))
    assert train.tolist() == sorted(train.tolist())
    assert validation.tolist() == sorted(validation.tolist())
    for label, count in enumerate(counts):
        held = int((labels[validation] == label).sum())
        assert held == (0 if share == 0 else min(max(round(share * count), 1), count - 1))


def test_hold_out_depends_on_the_seed_alone():
    first, second, other = hold_out(LABELS, 0.2, 1), hold_out(LABELS, 0.2, 1), hold_out(LABELS, 0.2, 2)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[1], other[1])


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_hold_out_of_a_bad_share(share):
    with pytest.raises(ValueError, match="must lie in"):
        hold_out(LABELS, share, 0)


def test_hold_out_of_a_class_with_one_image():
    with pytest.raises(DataError, match="class 1 has 1 image, too few"):
        hold_out(torch.tensor([0, 0, 1]), 0.5, 0)
    assert len(hold_out(torch.tensor([0, 0, 1]), 0.0, 0)[1]) == 0


def test_per_class_takes_the_first():
    chosen = per_class(LABELS, 2)
    slow = sorted(row for label in range(4) for row in [i for i in range(81) if LABELS[i] == label][:2])
    assert chosen.tolist() == slow


def test_per_class_at_random():
    chosen, again, other = per_class(LABELS, 2, seed=0), per_class(LABELS, 2, seed=0), per_class(LABELS, 2, seed=1)
    assert torch.equal(chosen, again)
    assert not torch.equal(chosen, other)
    assert LABELS[chosen].bincount().tolist() == [2, 2, 2, 2]
    assert len(chosen.unique()) == 8


def test_per_class_of_too_small_a_class():
    with pytest.raises(DataError, match="class 3 has 2 images, 5 of each"):
        per_class(LABELS, 5)
    with pytest.raises(ValueError, match="at least 1 image"):
        per_class(LABELS, 0)


def test_images_are_either_in_memory_or_read():
    labels, pixels = torch.tensor([0, 1]), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="not both and not neither"):
        Images(labels)
    with pytest.raises(ValueError, match="not both and not neither"):
        Images(labels, pixels=pixels, reader=lambda i: pixels[i])
    with pytest.raises(ValueError, match=r"\[N\] int64"):
        Images(labels.float(), pixels=pixels)
    with pytest.raises(ValueError, match="with N = 2"):
        Images(labels, pixels=pixels[:1])
    assert torch.equal(Images(labels, reader=lambda i: pixels[i]).read(1), pixels[1])
    assert Images(labels, pixels=pixels, names=["a.png", "b.png"]).name(1) == "b.png"
