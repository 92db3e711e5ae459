"""What a search may be asked for beside its portion: how far, in which steps, at which resolution, in how much memory, by which engine."""

import importlib.util
import itertools
import logging
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from helpers import ENGINES_HERE, seeded
from mixsage import SAGE
from mixsage.rearrange import Full, Guided, Paste, Sampled, best_of, costs, direct, engines, sample_shifts, search, total_saliency
from surfaces import every_v, random_maps

BLENDS = [Guided(), Paste()]


def pair(batch=6, height=10, width=14):
    return 0.4 * random_maps(batch, height, width, 1), 0.6 * random_maps(batch, height, width, 2)


@pytest.mark.parametrize(
    ("max_shift", "stride", "rows", "columns"),
    [
        (1.0, 1, range(-9, 10), range(-13, 14)),
        (0.5, 1, range(-5, 6), range(-7, 8)),
        (0.29, 1, range(-2, 3), range(-4, 5)),
        (0.0, 1, [0], [0]),
        (1.0, 4, [-8, -4, 0, 4, 8], [-12, -8, -4, 0, 4, 8, 12]),
        (0.5, 3, [-3, 0, 3], [-6, -3, 0, 3, 6]),
    ],
)
def test_which_shifts_there_are(max_shift, stride, rows, columns):
    shifts = sample_shifts(10, 14, 1.0, max_shift=max_shift, stride=stride)
    assert [tuple(shift) for shift in shifts.tolist()] == list(itertools.product(rows, columns))
    some = sample_shifts(10, 14, 0.5, seeded(), max_shift=max_shift, stride=stride)
    assert len(some) == max(1, len(shifts) // 2)
    assert {tuple(shift) for shift in some.tolist()} <= {tuple(shift) for shift in shifts.tolist()}


@pytest.mark.parametrize("engine", ENGINES_HERE)
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
@pytest.mark.parametrize(("max_shift", "stride"), [(0.3, 1), (1.0, 3), (0.6, 2)])
def test_search_within_bounds(engine, blend, max_shift, stride):
    first, second = pair()
    found = search(first, second, 1.0, engine=engine, blend=blend, max_shift=max_shift, stride=stride)
    expected = best_of(first, second, sample_shifts(10, 14, 1.0, max_shift=max_shift, stride=stride), engine="direct", blend=blend)
    assert torch.equal(found.shifts, expected.shifts)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("engine", ENGINES_HERE)
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
@pytest.mark.parametrize("options", [{}, {"portion": 0.1}, {"max_shift": 0.5, "stride": 2}, {"reduce": 2}])
def test_a_budget_does_not_change_the_result(engine, blend, options):
    first, second = pair(batch=33)
    wanted = {"portion": 1.0, "engine": engine, "blend": blend} | options
    free = search(first, second, **wanted, generator=seeded())
    for memory in (0.5, 0.2):
        bound = search(first, second, **wanted, generator=seeded(), memory=memory)
        assert torch.equal(bound.shifts, free.shifts)
        torch.testing.assert_close(bound.values, free.values, rtol=1e-6, atol=0)
    shifts = sample_shifts(10, 14, 1.0)
    torch.testing.assert_close(
        total_saliency(first, second, shifts, engine=engine, blend=blend, memory=0.2),
        total_saliency(first, second, shifts, engine=engine, blend=blend),
        rtol=1e-6,
        atol=0,
    )


@pytest.mark.parametrize("engine", ENGINES_HERE)
def test_a_budget_is_kept(engine):
    """The number of pairs at a time falls with it, and the last one that does not fit is an error that says how much is needed."""
    first, second = pair(batch=33)
    loaded = engines.load(engine, first, sample_shifts(10, 14, 1.0))
    sizes = [len(one) for one, _ in engines.parts(loaded, first, second, 513, 0.5)]
    each = loaded.bytes_per_pair(10, 14, 513, 4)
    assert max(sizes) * each <= 0.5 * 2**20 < (max(sizes) + 1) * each
    assert sum(sizes) == 33
    with pytest.raises(
        ValueError, match=r"memory=0.01 MiB is too little for one pair of 10×14 under 513 shifts, which takes 0\.\d MiB"
    ):
        search(first, second, 1.0, engine=engine, memory=0.01)


def peak(work):
    """MiB that the work has allocated at once, and not held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        work()
    sizes = [event.nbytes() for event in log.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(sizes)) / 2**20


@pytest.mark.parametrize("flat", [False, True], ids=["maps", "plateau"])
@pytest.mark.parametrize(
    "options",
    [
        {"portion": 0.01, "engine": "direct"},
        {"portion": 1.0, "engine": "fourier"},
        {"portion": 1.0, "reduce": 2},
        {"portion": 1.0, "reduce": 3, "blend": Paste()},
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_what_is_allocated_stays_within_the_budget(options, flat):
    batch = 300 if "reduce" in options else 100
    maps = (torch.full((batch, 48, 48), 0.5),) * 2 if flat else pair(batch, 48, 48)
    assert peak(lambda: search(*maps, **options, memory=8)) < 1.15 * 8


def test_values_by_the_fine_sum_stay_within_the_budget():
    maps, shifts = pair(100, 48, 48), sample_shifts(48, 48, 0.01, seeded())
    assert peak(lambda: total_saliency(*maps, shifts, engine="fourier", memory=8)) < 1.15 * 8


@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
@pytest.mark.parametrize("reduce", [2, 3])
@pytest.mark.parametrize("max_shift", [1.0, 0.4])
def test_reduced_search(blend, reduce, max_shift):
    """The value is that of the shift, which is the best within reach of what the reduced maps say; the shift keeps within bounds."""
    first, second = (torch.nn.functional.avg_pool2d(maps, 5, 1, 2) for maps in pair())
    found = search(first, second, 1.0, reduce=reduce, max_shift=max_shift, blend=blend)
    assert (
        found.shifts.abs()
        <= torch.tensor([int(10 * max_shift) if max_shift < 1 else 9, int(14 * max_shift + 1e-9) if max_shift < 1 else 13])
    ).all()
    whole = search(first, second, 1.0, max_shift=max_shift, blend=blend, engine="direct")
    regret = (whole.values - found.values) / whole.values
    assert (regret >= -1e-6).all()
    assert regret.mean() < 0.03
    for b in range(len(first)):
        own = best_of(first[b : b + 1], second[b : b + 1], found.shifts[b : b + 1], blend=blend, engine="direct")
        assert float(found.values[b]) == pytest.approx(float(own.values), rel=1e-6)


def test_a_reduced_search_tries_its_portion_of_what_max_shift_leaves():
    """Between equal flat maps every shift keeps as much, so that the one that was drawn is returned: all are drawn alike."""
    flat = torch.full((1, 32, 32), 2.0**-11)
    generator, times = seeded(), 250
    found = [search(flat, flat, 0.01, reduce=4, max_shift=0.25, generator=generator).shifts[0].tolist() for _ in range(times)]
    kinds = {(row, column) for row in range(-8, 9, 4) for column in range(-8, 9, 4)}
    assert {tuple(shift) for shift in found} == kinds
    assert found.count([0, 0]) < 3 * times / len(kinds)


def test_reduced_search_of_what_a_block_holds():
    """Maps made of blocks lose nothing by the reduction: the best shift is found, whatever its place."""
    blocks = random_maps(8, 4, 5, 3)
    first = blocks.repeat_interleave(2, 1).repeat_interleave(2, 2)
    second = first.flip(0)
    found, exact = search(first, second, 1.0, reduce=2), search(first, second, 1.0, engine="direct")
    torch.testing.assert_close(found.values, exact.values, rtol=1e-6, atol=0)
    assert float(every_v(first[:1], second[:1], found.shifts[:1])) == pytest.approx(float(found.values[0]), rel=1e-6)


@pytest.mark.parametrize("search_of", [Sampled, Full])
def test_searches_of_a_method_take_them_all(search_of):
    first, second = pair()
    options = {"engine": "fourier", "max_shift": 0.5, "stride": 2, "memory": 1.0}
    found = search_of(**options)(first, second, blend=Guided(), generator=seeded(1))
    portion = 0.01 if search_of is Sampled else 1.0
    assert torch.equal(found, search(first, second, portion, generator=seeded(1), **options).shifts)
    assert torch.equal(
        search_of(reduce=2)(first, second, blend=Guided(), generator=seeded(1)),
        search(first, second, portion, generator=seeded(1), reduce=2).shifts,
    )


def test_sage_keeps_the_partner_in_the_picture():
    images = torch.randn(8, 3, 12, 16, generator=seeded())
    plan = SAGE(search=Full(max_shift=0.25)).plan(images, saliency=random_maps(8, 12, 16), generator=seeded())
    assert (plan.warp.offsets.abs() <= torch.tensor([3, 4])).all()
    assert plan.warp.offsets.abs().amax() > 0


@pytest.mark.parametrize("dtypes", [(torch.float16,) * 2, (torch.bfloat16,) * 2, (torch.float32, torch.float64)])
def test_maps_are_single_or_double_precision(dtypes):
    """The reciprocals of half precision overflow, and what the engines answered of such maps would be wrong, or an error of torch's."""
    first, second = (maps.to(dtype) for maps, dtype in zip(pair(), dtypes, strict=True))
    for use in (search, lambda *maps: total_saliency(*maps, torch.zeros(1, 2, dtype=torch.int64))):
        with pytest.raises(
            TypeError, match=r"maps must both be float32, or both float64, got torch.* and torch.*; pass maps\.float\(\)"
        ):
            use(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_shift": -0.1}, r"max_shift must lie in \[0, 1\], got -0.1; 0.25 moves"),
        ({"max_shift": float("nan")}, r"max_shift must lie in \[0, 1\], got nan"),
        ({"stride": 0}, "stride must be a whole number of pixels, at least 1, got 0"),
        ({"stride": 2.0}, "stride must be a whole number of pixels, at least 1, got 2.0"),
        ({"reduce": "2"}, "reduce must be a whole number of pixels, at least 1, got '2'"),
        ({"reduce": 1.5}, "reduce must be a whole number of pixels, at least 1, got 1.5"),
        ({"reduce": 2, "stride": 2}, "reduce=2 refines to single pixels, which stride=2 forbids; set one of them to 1"),
        ({"memory": 0}, "memory must be a positive number of MiB, got 0; leave it out"),
    ],
)
def test_wrong_options(options, message):
    for use in (Sampled, Full, lambda **options: search(*pair(), **options)):
        with pytest.raises(ValueError, match=message):
            use(**options)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: Sampled("0.1"), TypeError, "portion must be a number, got '0.1'"),
        (lambda: Full(max_shift="1"), TypeError, "max_shift must be a number, got '1'"),
        (lambda: Sampled(engine=None), ValueError, "unknown engine None; valid: auto, direct"),
        (lambda: best_of(*pair(), [[0, 0]]), TypeError, r"shifts must be a tensor \[N, 2\] of whole numbers, rows first; got list"),
        (lambda: search([[1.0]], pair()[0]), TypeError, r"maps must be two tensors \[B, H, W\], got list"),
    ],
)
def test_what_is_no_number_or_no_tensor(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_the_best_of_nothing():
    with pytest.raises(ValueError, match="the best of no shifts was asked for"):
        best_of(*pair(), torch.empty(0, 2, dtype=torch.int64))


# ---------------------------------------------------------------------------------------------------------------------- engine="auto"


def test_auto_takes_the_cheaper_and_says_so_once(monkeypatch, caplog):
    engines._tell.cache_clear()
    first, second = pair()
    for cheaper, dearer in (("direct", "fourier"), ("fourier", "direct")):
        monkeypatch.setattr(costs, "estimate", lambda *_, cheaper=cheaper, dearer=dearer: {cheaper: 0.001, dearer: 0.002})
        with caplog.at_level(logging.INFO, "mixsage"):
            assert engines.load("auto", first, sample_shifts(10, 14, 1.0)).__name__ == f"mixsage.rearrange.{cheaper}"
            search(first, second, 1.0)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("search of 513 shifts for 6 pairs of 10×14 on cpu: engine 'direct', as the cost model expects")
    assert "1 ms for direct and 2 ms for fourier" in messages[0]


def test_the_cost_model():
    """More work costs more; all shifts of a large image are for one engine, a few of a small one for the other."""
    few, all_ = sample_shifts(32, 32, 0.01, seeded()), sample_shifts(224, 224, 1.0)
    small, large = costs.estimate("cpu", (100, 32, 32), few), costs.estimate("cpu", (64, 224, 224), all_)
    assert small["direct"] < small["fourier"]
    assert large["fourier"] < large["direct"]
    for engine in ("direct", "fourier"):
        assert large[engine] > costs.estimate("cpu", (32, 224, 224), all_)[engine] > 0
    assert costs.estimate("cuda", (100, 32, 32), few).keys() == {*small, "triton"}
    assert costs.estimate("mps", (100, 32, 32), few).keys() == {*small, "triton"}


def test_auto_does_without_triton_where_it_does_not_work(monkeypatch, caplog):
    """Said once with the reason; and where it works, it is among the choices."""

    class Broken:
        @staticmethod
        def total_saliency(*_):
            raise RuntimeError("Failed to find C compiler")

    class Sound:
        total_saliency = staticmethod(direct.total_saliency)

    gpu, shifts = torch.device("cuda", 0), sample_shifts(32, 32, 0.01, seeded())
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(shape, device="cpu" if device == gpu else device))
    for engine, chosen, said in ((Broken, "direct", 1), (Sound, "triton", 0)):
        engines._triton_works.cache_clear()
        caplog.clear()
        monkeypatch.setattr(engines, "_triton", lambda engine=engine: engine)
        for _ in range(2):
            assert engines._choose(gpu, (100, 32, 32), shifts) == chosen
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == said
        assert all("triton does not work on cuda:0 (RuntimeError: Failed to find C compiler)" in warning for warning in warnings)
    engines._triton_works.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.INFO, "mixsage"):
        assert engines._choose(gpu, (100, 32, 32), shifts) == "direct"
    assert "triton is not installed" in caplog.text
    engines._triton_works.cache_clear()


def test_triton_where_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "mixsage.rearrange.triton", raising=False)
    with pytest.raises(ImportError, match='engine="triton" needs triton, which is not installed: it comes with torch for CUDA'):
        search(*pair(), engine="triton")
