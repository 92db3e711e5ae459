"""`accumulate` in two processes: one gradient, one reduction a step, choices of their own."""

import subprocess
import sys

import pytest
import torch

import ranks
from helpers import tensors_of
from mixsage import SAGE, Blocks, MixPlan, Shift, accumulate
from plain_passes import assert_gradients, joined, precise
from ranks import MIXERS, SCENARIOS, WORLD, bare, batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the two processes have left what they saw."""
    folder = tmp_path_factory.mktemp("processes")
    processes = [
        subprocess.Popen(
            [sys.executable, ranks.__file__, str(rank), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return folder


@pytest.fixture
def seen(folder):
    """What each process saw of a scenario."""

    def load(name):
        both = [torch.load(folder / f"{name} {rank}.pt") for rank in range(WORLD)]
        for rank, saw in enumerate(both):
            assert "failed" not in saw, f"process {rank}: {saw['failed']}"
        return both

    return load


def loaded(plan):
    warp = None
    for kind, tensors in plan["warp"].items():
        warp = {"Shift": Shift, "Blocks": Blocks}[kind](**tensors)
    return MixPlan(sources=plan["sources"], masks=plan["masks"], weights=plan["weights"], layer=plan["layer"], warp=warp)


def form(plan):
    return plan.layer, {
        name: tensor.shape for name, tensor in tensors_of(plan).items() if name == "masks" or name.startswith("warp")
    }


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in ("sources", "masks", "weights"))


@pytest.mark.parametrize("name", MIXERS)
def test_gradient_is_that_of_one_process_with_the_whole_batch(name, seen):
    first, second = seen(f"gradients of {name}")
    plans = [loaded(saw["plan"]) for saw in (first, second)]
    model = bare()
    if form(plans[0]) == form(plans[1]):
        accumulate(MIXERS[name], model, *batch(), criterion=precise, plan=joined(*plans))
    else:  # two layers, or two grids: no one plan says both, but the mean of the two halves is the whole
        for rank, plan in enumerate(plans):
            accumulate(MIXERS[name], model, *batch(rank), criterion=precise, plan=plan, weight=1 / WORLD)
    assert_gradients(model, first["gradients"])
    for parameter, gradient in first["gradients"].items():
        assert torch.equal(gradient, second["gradients"][parameter])
    assert [first["reductions"], second["reductions"]] == [1, 1]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("three steps")])
def test_one_reduction_a_step_and_the_same_parameters_everywhere(name, seen):
    first, second = seen(name)
    assert first["counts"] == second["counts"] == [1, 1, 1]
    for parameter, tensor in first["parameters"].items():
        assert torch.equal(tensor, second["parameters"][parameter])
    # However the model is wrapped, the steps are those of the plain wrapper.
    reference = seen("three steps, no reuse" if "no reuse" in name else "three steps")[0]["parameters"]
    bare_names = {
        parameter.removeprefix("_orig_mod.").removeprefix("inner."): tensor for parameter, tensor in first["parameters"].items()
    }
    for parameter, tensor in reference.items():
        torch.testing.assert_close(bare_names[parameter], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("draws")])
def test_processes_draw_differently_though_seeded_alike(name, seen):
    first, second = seen(name)
    assert not same(first["default"], second["default"])
    assert not same(first["given"][0], second["given"][0])
    for saw in (first, second):  # and yet each one the same when the same seed comes again
        assert same(*saw["given"])


def test_scaled_gradients_are_reduced_once(seen):
    first, second = seen("scaled")
    assert [first["reductions"], second["reductions"]] == [1, 1]
    for name, tensor in first["plain"].items():
        torch.testing.assert_close(first["scaled"][name], 1024 * tensor)
        assert torch.equal(first["scaled"][name], second["scaled"][name])


@pytest.mark.parametrize(("name", "skipped"), [("overflow", True), ("overflow, no reuse", False)])
def test_an_overflow_in_one_process_is_seen_by_all(name, skipped, seen):
    for saw in seen(name):
        assert saw["scale"] == (512.0 if skipped else 1024.0)
        assert torch.equal(saw["before"], saw["after"]) == skipped
        assert saw["after"].isfinite().all()


def test_microbatches_are_reduced_once(seen):
    both = seen("microbatches")
    assert [saw["inside"] for saw in both] == [0, 0]
    assert [saw["reductions"] for saw in both] == [1, 1]
    model = bare()
    for rank, saw in enumerate(both):
        images, labels = batch(rank)
        for part, plan in zip((slice(0, 2), slice(2, 4)), saw["plans"], strict=True):
            accumulate(SAGE(), model, images[part], labels[part], criterion=precise, plan=loaded(plan), weight=0.25)
    assert_gradients(model, both[0]["gradients"])


def test_without_reuse_every_parameter_sees_one_gradient(seen):
    for saw in seen("hooks without reuse"):
        assert set(saw["counts"]) == {1}
        assert saw["reductions"] == 1


def test_processes_mix_the_same_steps(seen):
    first, second = seen("sometimes mixed")
    assert first["mixed"] == second["mixed"]
    assert 0 < sum(first["mixed"]) < 12
    assert first["reductions"] == 12


@pytest.mark.parametrize(("mode", "moves"), [("train", 2), ("eval", 1)])
def test_statistics_of_batchnorm(mode, moves, seen):
    for saw in seen(f"batchnorm, {mode}"):
        assert saw["moves"] == [moves, moves]
        assert all(saw["flags"])


def test_a_plain_call_leaves_wrapper_and_statistics_as_they_were(seen):
    for rank, saw in enumerate(seen("plain call")):
        # The plain pass that follows begins with a broadcast of the first process's statistics: none came before it.
        assert saw["mean"].tolist() == [rank] * 4
        assert saw["reductions"] == 1
        assert saw["finite"]


def test_hidden_mixing(seen):
    for saw in seen("transformer"):
        assert saw == {"layer": "blocks.0", "reductions": 1}
