"""Figures: every one is drawn from plain arrays, the same each time, and says what it cannot draw."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mixsage.reports import figures
from mixsage.reports.figures.charts import _apart
from mixsage.reports.pictures import Arrangement, Curve, Mix, Pair, Point, Story


def picture(seed, height=12, width=16, channels=3):
    return np.random.default_rng(seed).random((height, width, channels))


def mix(seed=0, offset=(2, -3), height=12, width=16):
    mask = np.random.default_rng(seed).random((height, width))
    return Mix(picture=picture(seed, height, width), names=("a", "b"), shares=(0.7, 0.3), mask=mask, offset=offset)


def pair(**changes):
    settings = {
        "image": picture(1),
        "partner": picture(2),
        "names": ("cat", "dog"),
        "saliency": (picture(3)[..., 0], picture(4)[..., 0]),
        "mixes": {"Mixup": mix(5, None), "SAGE": mix(6)},
    }
    return Pair(**{**settings, **changes})


def story():
    best = Arrangement(value=0.6, mix=mix(1))
    return Story(
        image=picture(1),
        partner=picture(2),
        names=("cat", "dog"),
        saliency=(picture(3)[..., 0], picture(4)[..., 0]),
        share=0.4,
        surface=picture(5, 23, 31)[..., 0],
        tried=np.array([[0, 0], [2, -3]]),
        best=best,
        others=(Arrangement(value=0.5, mix=mix(2, (0, 0))), Arrangement(value=0.4, mix=mix(3, (-11, 15)))),
    )


def points(count=10):
    draw = np.random.default_rng(0)
    return [
        Point(arm=f"method {i}", x=float(draw.random()), y=float(draw.random()), y_error=0.1 if i % 2 else None)
        for i in range(count)
    ]


DRAWINGS = {
    "gallery": lambda: figures.gallery([pair(), pair()], title="All"),
    "gallery without a network": lambda: figures.gallery([pair(saliency=None)]),
    "gallery of mixes alone": lambda: figures.gallery([pair()], explained=None),
    "pipeline": lambda: figures.pipeline(story()),
    "against": lambda: figures.against_mixup(pair()),
    "rearrangements": lambda: figures.rearrangements(story()),
    "shares": lambda: figures.shares([(0.0, mix(1, (0, 0))), (0.5, mix(2)), (1.0, mix(3, None))]),
    "tradeoff": lambda: figures.tradeoff(points(), x="time", y="accuracy", title="T", strong="method 3", log_x=True),
    "curves": lambda: figures.training_curves(
        [Curve(arm=f"m{i}", epochs=(1, 2, 3), values=np.random.default_rng(i).random((2, 3))) for i in range(9)], y="accuracy"
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_figure_is_drawn_and_the_same_again(name, tmp_path):
    first, second = (figures.as_svg(DRAWINGS[name]()) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")
    assert first.rstrip().endswith("</svg>")
    assert "<image" in first or name in {"tradeoff", "curves"}
    # Nothing in it is fetched from anywhere.
    assert all(address.startswith(("#", "data:")) for address in re.findall(r'(?:xlink:href|src)="([^"]*)"', first))
    path = figures.save(DRAWINGS[name](), tmp_path / "deep" / "figure.png", dpi=40)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def texts(figure):
    figure.canvas.draw()
    return [text.get_text() for axes in figure.axes for text in axes.texts] + [axes.get_title() for axes in figure.axes]


def test_the_gallery_says_what_it_shows():
    found = texts(DRAWINGS["gallery"]())
    assert {"cat", "dog", "70 %", "30 %", "↓2 ←3", "Mixup", "SAGE", "mask and shift"} <= set(found)


def test_the_gallery_speaks_of_a_shift_only_where_something_shifts():
    still = mix(1, None)
    more = replace(still, names=("cat", "dog", "cow"), shares=(0.5, 0.3, 0.2))
    for one, title, legend in (
        (mix(1), "mask and shift", "orange where the partner does; the dashed frame"),
        (still, "mask", "orange where the partner does."),
        (more, "mask", "orange where any other does."),
    ):
        figure = figures.gallery([pair(mixes={"SAGE": one})])
        assert title in texts(figure)
        assert legend in " ".join(" ".join(text.get_text() for text in figure.texts).split())


def test_the_explained_method_comes_last():
    figure = figures.gallery([pair(mixes={"SAGE": mix(1), "Mixup": mix(2, None)})])
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[2] == "Mixup"
    assert titles[-1] == "SAGE"


def test_rearrangements_are_ordered_by_what_they_keep():
    titles = [title for title in texts(DRAWINGS["rearrangements"]()) if "v =" in title]
    assert titles == ["a   v = 0.600", "b   v = 0.500", "c   v = 0.400"]


def test_names_of_points_do_not_cover_one_another():
    figure = figures.tradeoff(points(12), x="x", y="y")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    overlaps = sum(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    assert len(boxes) == 12
    assert overlaps == 0


def test_names_of_coinciding_points_do_not_cover_one_another():
    figure = figures.tradeoff([Point(arm=f"the same {i}", x=1.0, y=2.0) for i in range(4)], x="x", y="y")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.0, 5.0, 9.99, 10.0], [0.0, 0.1, 0.2, 9.0], [*range(40)]])
def test_heights_of_names_keep_order_and_distance(values):
    heights = _apart([float(value) for value in values], (0.0, 10.0))
    gaps = np.diff(heights)
    assert (gaps > 0).all()
    assert (gaps >= min(0.55, 10 / max(len(values) - 1, 1)) - 1e-9).all()
    assert max(heights) <= 10 + 1e-9


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.gallery([]), "at least one pair"),
        (lambda: figures.gallery([pair(), pair(mixes={"SAGE": mix()})]), "the same methods"),
        (lambda: figures.gallery([pair(image=np.zeros((4, 4)))]), r"a picture is \[H, W, 3\] or \[H, W, 1\], got \[4, 4\]"),
        (lambda: figures.against_mixup(pair(mixes={"SAGE": mix()})), "no mix of 'Mixup', only of SAGE"),
        (lambda: figures.shares([]), "no shares"),
        (lambda: figures.tradeoff([], x="x", y="y"), "no points"),
        (lambda: figures.training_curves([], y="y"), "no curves"),
        (lambda: figures.training_curves([Curve(arm="a", epochs=(1, 2), values=np.ones((1, 3)))], y="y"), "3 values for 2 epochs"),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_formats(tmp_path):
    with pytest.raises(ValueError, match=r"saved as \.svg, \.png, \.pdf, got 'figure\.bmp'"):
        figures.save(DRAWINGS["shares"](), tmp_path / "figure.bmp")


def test_pyplot_is_left_alone():
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    DRAWINGS["tradeoff"]()
    assert plt.get_fignums() == before
