"""Every kind of image file becomes the same kind of pixels; every damaged one is named."""

import io
from pathlib import Path

import pytest
import torch

from image_files import noise, png_of_16_bits, save, truncate

pytest.importorskip("torchvision")
PIL = pytest.importorskip("PIL.Image")

from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image  # noqa: E402

from mixsage.data import CorruptImage, decode, read_image  # noqa: E402
from mixsage.data.decode import size_of  # noqa: E402


def contents(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pixels(image, form="PNG", **options):
    return decode(contents(image, form, **options), "it")


def test_colour_is_kept(tmp_path):
    image = noise(5, 7)
    assert torch.equal(pixels(to_pil_image(image)), image)
    assert torch.equal(decode(save(tmp_path / "a.png", image), "a.png"), image)


def test_grey_becomes_colour_and_colour_grey():
    grey = noise(5, 7, channels=1)
    assert torch.equal(pixels(to_pil_image(grey)), grey.expand(3, -1, -1))
    assert torch.equal(decode(contents(to_pil_image(grey)), "it", channels=1), grey)
    assert torch.equal(decode(contents(to_pil_image(grey.expand(3, -1, -1))), "it", channels=1), grey)


def test_black_and_white():
    bits = torch.tensor([[True, False, True], [False, False, True]])
    image = PIL.new("1", (3, 2))
    image.putdata([int(bit) for bit in bits.flatten()])
    assert torch.equal(pixels(image), (bits * 255).to(torch.uint8).expand(3, -1, -1))


def test_palettes():
    image = PIL.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([1, 0])
    assert pixels(image).flatten(1).T.tolist() == [[40, 50, 60], [10, 20, 30]]
    assert pixels(image, transparency=1).flatten(1).T.tolist() == [[255, 255, 255], [10, 20, 30]]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_shows_white_behind_it(mode):
    image = noise(6, 6, channels=4)
    opened = to_pil_image(image).convert(mode)
    colour, alpha = parts_of(opened)
    expected = colour * alpha / 255 + 255 * (1 - alpha / 255)
    assert (pixels(opened).double() - expected).abs().max() <= 1
    assert pixels(PIL.new(mode, (1, 1))).flatten().tolist() == [255, 255, 255]


def parts_of(opened):
    """Colour and opacity of an image that has both."""
    values = pil_to_tensor(opened.convert("RGBA")).double()
    return values[:3], values[3:]


def test_16_bit_grey_is_scaled_not_clipped():
    values = torch.tensor([0, 128, 129, 255, 256, 257, 1000, 30_000, 32_768, 65_407, 65_535])
    image = PIL.new("I;16", (11, 1))
    image.putdata(values.tolist())
    expected = (values.double() / 257).round().to(torch.uint8)
    for form in ("PNG", "TIFF"):
        assert torch.equal(pixels(image, form), expected.expand(3, 1, -1))
    big_endian = PIL.frombytes("I;16B", (11, 1), values.numpy().astype(">u2").tobytes())
    assert torch.equal(pixels(big_endian, "TIFF"), expected.expand(3, 1, -1))


def test_16_bit_colour_is_scaled_not_clipped():
    values = torch.randint(0, 65536, (3, 4, 5), generator=torch.Generator().manual_seed(0))
    read = decode(png_of_16_bits(values), "it")
    assert (read.double() - values / 257).abs().max() <= 1


def test_32_bits_without_a_range():
    image = PIL.new("I", (2, 1))
    image.putdata([0, 40_000])
    assert pixels(image, "TIFF")[0].tolist() == [[0, 156]]
    image.putdata([-1, 70_000])
    with pytest.raises(CorruptImage, match="range from -1 to 70000, expected 0 to 65535"):
        pixels(image, "TIFF")
    with pytest.raises(CorruptImage, match="floating-point values"):
        pixels(PIL.new("F", (2, 2)), "TIFF")


def test_cmyk():
    red = PIL.new("CMYK", (8, 8), (0, 255, 255, 0))
    for form in ("JPEG", "TIFF"):
        shown = pixels(red, form).double().mean(dim=(1, 2))
        assert (shown - torch.tensor([255, 0, 0])).abs().max() < 4


def test_photographs_are_turned_upright():
    image = noise(4, 6)
    exif = PIL.Exif()
    exif[0x0112] = 6
    for form, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 100})):
        turned = contents(to_pil_image(image), form, exif=exif, **options)
        shown = decode(turned, "it")
        assert shown.shape == (3, 6, 4)
        assert size_of(turned, "it") == (6, 4)
        assert form == "JPEG" or torch.equal(shown, image.rot90(-1, (1, 2)))
    assert size_of(contents(to_pil_image(image)), "it") == (4, 6)


@pytest.mark.parametrize("ending", ["png", "jpg", "tiff", "webp", "bmp"])
def test_cut_off_files_are_named(tmp_path, ending):
    path = truncate(save(tmp_path / f"bad.{ending}", noise(64, 64)))
    with pytest.raises(CorruptImage, match=r"bad\.\w+ cannot be read as an image: "):
        decode(path, str(path))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", bytes(1000)])
def test_what_is_no_image_is_named(tmp_path, content):
    (tmp_path / "bad.png").write_bytes(content)
    for look in (decode, size_of):
        with pytest.raises(CorruptImage, match=r"bad\.png cannot be read as an image"):
            look(tmp_path / "bad.png", "bad.png")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's own, about what it skips
def test_flipped_bits_never_raise_anything_else():
    """Damage anywhere in the file: either some pixels come out, or the image is named."""
    named = 0
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP"):
        whole = contents(to_pil_image(noise(24, 24)), form)
        for k in range(120):
            content = bytearray(whole)
            content[k * len(content) // 120] ^= 0x55
            try:
                assert decode(bytes(content), "it").dtype == torch.uint8
            except CorruptImage as error:
                named += str(error).startswith("it ")
    assert named > 50


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb(monkeypatch):
    content = contents(to_pil_image(noise(64, 64)))
    monkeypatch.setattr(PIL, "MAX_IMAGE_PIXELS", 1000)
    for look in (decode, size_of):
        with pytest.raises(CorruptImage, match="decompression bomb"):
            look(content, "it")


def test_a_missing_file():
    with pytest.raises(CorruptImage, match="No such file"):
        decode(Path("/no/such.png"), "/no/such.png")


def test_one_image_as_an_evaluation_shows_it(tmp_path):
    image = noise(16, 16)
    path = save(tmp_path / "a.png", image)
    settings = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "channels": 3}
    shown = read_image(path, size=(16, 16), augmentation="crop", **settings)
    expected = (image / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 0.6, 0.7])[:, None, None]
    torch.testing.assert_close(shown, expected)
    assert read_image(path, size=(8, 8), augmentation="crop", **settings).shape == (3, 8, 8)
    assert read_image(path, size=(224, 224), **settings).shape == (3, 224, 224)
    assert read_image(path, size=(16, 16), channels=1, mean=(0.5,), std=(0.5,), augmentation="crop").shape == (1, 16, 16)
