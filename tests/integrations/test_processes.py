"""Two processes that train one model: their steps are the mean of two raw ones, with choices of its own on each."""

import pytest
import torch

import processes

LIBRARIES = {"lightning": "lightning", "fabric": "lightning", "accelerate": "accelerate"}
"""What a scenario needs beside torch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the processes have left the states of their models."""
    folder = tmp_path_factory.mktemp("states")
    processes.run(str(folder))
    return folder


def test_shares_differ():
    """What the test below relies on: the processes see different pictures."""
    one, other = processes.share(0), processes.share(1)
    assert len(one) == len(other) == processes.STEPS
    assert not torch.equal(one[0][0], other[0][0])


@pytest.mark.parametrize("name", processes.SCENARIOS)
def test_three_steps_are_those_of_the_raw_loop(name, folder):
    if library := LIBRARIES.get(name.partition(",")[0]):
        pytest.importorskip(library)
    _, mixer, options = processes.SCENARIOS[name]
    expected = processes.expected(mixer, options.get("every", 1))
    start = processes.network().state_dict()
    assert not torch.equal(start["head.weight"], expected["head.weight"])
    for rank in range(processes.COUNT):
        state = torch.load(folder / f"{name} {rank}.pt", weights_only=True)
        assert "failed" not in state, state["failed"]
        assert state.keys() == expected.keys()
        for part, tensor in expected.items():
            torch.testing.assert_close(state[part], tensor, rtol=1e-5, atol=1e-6, msg=lambda text, part=part: f"{part}: {text}")
