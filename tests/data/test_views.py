"""Views of single images against torchvision's own transforms and against slow loops."""

import math

import pytest
import torch

from image_files import noise

pytest.importorskip("torchvision")

from torchvision.transforms import v2

from mixsage.data.views import as_evaluated, draw_part, middle, random_part, resize, shifted


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(256, 256), (300, 500), (500, 301), (100, 37), (224, 224), (10, 12), (1, 1), (1, 3)])
@pytest.mark.parametrize("side", [224, 84, 33])
def test_the_middle_is_the_usual_one(shape, side):
    image = noise(*shape)
    usual = v2.Compose([v2.Resize(round(side / 0.875), antialias=True), v2.CenterCrop(side)])
    assert torch.equal(middle(image, (side, side)), usual(image))


def test_the_middle_of_a_very_long_image_takes_no_more_than_a_long_one():
    image = torch.zeros(3, 3, 5000, dtype=torch.uint8)
    image[:, :, 2490:2510] = 200
    shown = middle(image, (224, 224))
    assert shown.shape == (3, 224, 224)
    assert shown.float().mean() > 100


def test_the_middle_where_batches_are_not_square():
    image = noise(100, 100)
    assert middle(image, (64, 32)).shape == (3, 64, 32)
    assert torch.equal(middle(image, (64, 32)), v2.functional.center_crop(resize(image, (73, 73)), [64, 32]))


def test_evaluation_of_images_of_other_sizes():
    image = noise(32, 32)
    assert as_evaluated(image, (32, 32), "crop") is image
    assert torch.equal(
        as_evaluated(noise(40, 64), (32, 32), "crop"), v2.functional.center_crop(resize(noise(40, 64), (32, 51)), [32, 32])
    )
    assert not torch.equal(as_evaluated(image, (32, 32), "resize"), image)


@pytest.mark.parametrize(("height", "width"), [(300, 400), (32, 32), (500, 90), (7, 200), (1, 1), (1, 50), (2, 2)])
def test_random_parts_lie_inside(height, width):
    source = seeded()
    for _ in range(500):
        top, left, rows, columns = draw_part(height, width, source)
        assert rows >= 1
        assert columns >= 1
        assert 0 <= top <= height - rows
        assert 0 <= left <= width - columns


def test_random_parts_have_the_usual_areas_aspects_and_places():
    """Compared with torchvision's own draw, moment by moment."""
    ours = torch.tensor([draw_part(300, 400, seeded(seed)) for seed in range(4000)], dtype=torch.float64)
    usual = v2.RandomResizedCrop(224)
    torch.manual_seed(0)
    image = torch.zeros(1, 300, 400, dtype=torch.uint8)
    drawn = [usual.make_params([image]) for _ in range(4000)]
    theirs = torch.tensor([[one[side] for side in ("top", "left", "height", "width")] for one in drawn], dtype=torch.float64)
    for quantity in (lambda p: p[:, 2] * p[:, 3], lambda p: (p[:, 3] / p[:, 2]).log(), lambda p: p[:, 0], lambda p: p[:, 1]):
        one, other = quantity(ours), quantity(theirs)
        scale = other.std() * math.sqrt(2 / 4000)
        assert abs(one.mean() - other.mean()) < 4.5 * scale
        assert one.std().item() == pytest.approx(other.std().item(), rel=0.06)


def test_random_parts_reach_every_place():
    parts = [draw_part(4, 4, seeded(seed)) for seed in range(3000)]
    assert {part[:2] for part in parts if part[2:] == (2, 2)} == {(i, j) for i in range(3) for j in range(3)}


def test_a_random_part_is_cut_scaled_and_mirrored():
    image = noise(60, 80)
    mirrored = 0
    for seed in range(60):
        top, left, rows, columns = draw_part(60, 80, seeded(seed))
        plain = v2.functional.resized_crop(image, top, left, rows, columns, [32, 24], antialias=True)
        shown = random_part(image, (32, 24), True, seeded(seed))
        assert torch.equal(random_part(image, (32, 24), False, seeded(seed)), plain)
        assert torch.equal(shown, plain) or torch.equal(shown, plain.flip(-1))
        mirrored += not torch.equal(shown, plain)
    assert 15 < mirrored < 45


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 400)])
def test_images_smaller_than_the_crop_are_scaled_up(shape):
    image = noise(*shape)
    assert random_part(image, (32, 32), True, seeded()).shape == (3, 32, 32)
    assert middle(image, (32, 32)).shape == (3, 32, 32)


def test_shifted_images_keep_their_size():
    image = noise(6, 9)
    assert torch.equal(shifted(image, 0, False, seeded()), image)
    shown = [shifted(image, 3, False, seeded(seed)) for seed in range(200)]
    assert all(one.shape == image.shape for one in shown)
    black = torch.zeros(3, 12, 15, dtype=torch.uint8)
    black[:, 3:9, 3:12] = image
    places = {next((i, j) for i in range(7) for j in range(7) if torch.equal(black[:, i : i + 6, j : j + 9], one)) for one in shown}
    assert len(places) > 40
