"""Fine-grained saliency: OpenCV's detector on bytes, to the byte; and its rule written out pixel by pixel."""

import math

import pytest
import torch

from mixsage import SAGE, FineGrained
from mixsage.data import load_sample


def opencv(image):
    """OpenCV's map of one byte image [3, H, W] in red, green, blue."""
    cv2 = pytest.importorskip("cv2")
    numpy = pytest.importorskip("numpy")
    if not hasattr(cv2, "saliency"):
        pytest.skip("needs opencv-contrib-python")
    picture = numpy.ascontiguousarray(image.permute(1, 2, 0).numpy()[:, :, ::-1])
    done, found = cv2.saliency.StaticSaliencyFineGrained_create().computeSaliency(picture)
    assert done
    return torch.from_numpy(found).float() / (255 if found.dtype == numpy.uint8 else 1)


def bytes_like(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def smooth_bytes(batch, height, width):
    coarse = torch.rand(batch, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    return (torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1) * 255).round().to(torch.uint8)


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (50, 33), (1, 9), (2, 2), (3, 64), (130, 90)])
@pytest.mark.parametrize("make", [lambda h, w: bytes_like(6, 3, h, w), lambda h, w: smooth_bytes(6, h, w)])
def test_opencv_on_bytes(make, size):
    images = make(*size)
    ours = FineGrained()(images / 255, None)
    theirs = torch.stack([opencv(image) for image in images])
    # It adds two bytes and lets them overflow; where the sum fits, nothing differs.
    fits = (ours < 1) | (theirs == 1)
    torch.testing.assert_close(ours[fits], theirs[fits], rtol=0, atol=1e-4)
    assert fits.float().mean() > 0.99


def test_real_images_have_the_same_peak():
    images = load_sample("test").images[:200].expand(-1, 3, -1, -1)
    ours = FineGrained()(images / 255, None)
    theirs = torch.stack([opencv(image) for image in images])
    assert (ours.flatten(1).argmax(dim=1) == theirs.flatten(1).argmax(dim=1)).float().mean() > 0.98


def literal(grey):
    """The rule, pixel by pixel, of a grey picture as rows of whole numbers."""
    height, width = len(grey), len(grey[0])

    def bounce(place, size):
        return 0 if size == 1 else size - 1 - abs(size - 1 - abs(place)) if place < size else 2 * (size - 1) - place

    def blur(rows):
        return [
            [
                (
                    sum(
                        (2 - abs(a)) * (2 - abs(b)) * rows[bounce(i + a, height)][bounce(j + b, width)]
                        for a in (-1, 0, 1)
                        for b in (-1, 0, 1)
                    )
                    + 8
                )
                // 16
                for j in range(width)
            ]
            for i in range(height)
        ]

    rows = blur(blur(grey))
    totals = {sign: [[0] * width for _ in range(height)] for sign in (1, -1)}
    for reach in (12, 24, 48, 28, 56, 112):
        for i in range(height):
            for j in range(width):
                square = [
                    rows[k][l]
                    for k in range(max(0, i - reach + 1), min(height, i + reach + 1))
                    for l in range(max(0, j - reach + 1), min(width, j + reach + 1))
                ]
                mean = (sum(square) - rows[i][j]) / max(1, len(square) - 1)
                for sign, total in totals.items():
                    total[i][j] += max(0, math.floor(sign * (rows[i][j] - mean)))
    peaks = {sign: max(1, *map(max, total)) for sign, total in totals.items()}
    return [[min(255, sum(255 * totals[s][i][j] // peaks[s] for s in (1, -1))) for j in range(width)] for i in range(height)]


@pytest.mark.parametrize("size", [(14, 17), (1, 5), (30, 3)])
def test_the_rule_written_out(size):
    grey = bytes_like(1, *size, seed=3)
    found = FineGrained()(grey[None] / 255, None) * 255
    assert found.round()[0].int().tolist() == literal(grey[0].tolist())


def test_normalised_images_give_the_map_of_the_picture():
    images = bytes_like(4, 3, 20, 20) / 255
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    normalised = (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(FineGrained(mean=mean, std=std)(normalised, None), FineGrained()(images, None))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_numbers_of_channels(channels):
    one = bytes_like(2, 1, 16, 16) / 255
    torch.testing.assert_close(FineGrained()(one.expand(-1, channels, -1, -1), None), FineGrained()(one, None))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1.0, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hostile_images_have_finite_maps(value, dtype):
    images = torch.rand(2, 3, 12, 12).to(dtype)
    images[0] = torch.tensor(value).to(dtype)
    images[1, :, 5, 5] = torch.tensor(value).to(dtype)
    maps = FineGrained()(images, None)
    assert maps.isfinite().all()
    assert maps.min() >= 0
    assert maps.dtype == torch.float32


def test_sage_takes_it():
    mixed, targets = SAGE(saliency=FineGrained(), num_classes=3)(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]))
    assert mixed.shape == (4, 3, 16, 16)
    assert torch.allclose(targets.sum(dim=1), torch.ones(4))


def test_mean_and_std_belong_together():
    with pytest.raises(ValueError, match="mean and std belong together"):
        FineGrained(mean=(0.5,))
    with pytest.raises(TypeError, match=r"one value a channel, got mean=0.5, std=0.5; .*mean=\(0.5,\)"):
        FineGrained(mean=0.5, std=0.5)
    with pytest.raises(ValueError, match="std positive"):
        FineGrained(mean=(0.5,), std=(0.0,))
    with pytest.raises(ValueError, match="one value each a channel"):
        FineGrained(mean=(0.5, 0.5), std=(0.1,))
    with pytest.raises(ValueError, match="have 1 and 1 values, the images 3 channels"):
        FineGrained(mean=(0.5,), std=(0.1,))(torch.rand(2, 3, 4, 4), None)
