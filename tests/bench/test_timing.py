"""Arms take turns."""

from __future__ import annotations

import torch

from mixsage.bench.timing import Settings, environment, ratio, take_turns

CPU = torch.device("cpu")


def test_arms_take_turns_forwards_and_backwards_after_a_round_to_warm_up() -> None:
    seen: list[str] = []
    arms = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    times = take_turns(arms, 2, CPU)
    assert "".join(seen) == "cba" + "abc" + "cba"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2, "c": 2}


def test_several_calls_a_round_have_one_more_before_them() -> None:
    seen: list[str] = []
    take_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 1, CPU, calls={"a": 3})
    assert "".join(seen) == "b" + "aaaa" + "aaaa" + "b"


def test_ratios_are_formed_within_rounds() -> None:
    spread = ratio({"mine": [2.0, 20.0, 200.0], "other": [1.0, 10.0, 100.0]}, "mine", "other")
    assert (spread.low, spread.median, spread.high, spread.count) == (2.0, 2.0, 2.0, 3)


def test_rounds_are_as_given_or_few_when_quick_or_as_usual() -> None:
    assert [Settings(rounds=5, quick=True).rounds_or(9), Settings(quick=True).rounds_or(9), Settings().rounds_or(9)] == [5, 2, 9]


def test_the_environment_names_machine_and_versions() -> None:
    found = environment(CPU, ("no-such-package",))
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert {"machine", "cores", "load", "python"} <= found.keys()
    assert "no-such-package" not in found and "gpu" not in found
