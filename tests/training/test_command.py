"""The command as a program of its own: how it is started, and what it writes to."""

import subprocess
import sys

import pytest

import mixsage

pytest.importorskip("tyro")


@pytest.mark.parametrize("asked", [["--version"], ["-V"]])
def test_the_module_is_the_command(asked):
    ended = subprocess.run([sys.executable, "-m", "mixsage", *asked], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == f"mixsage {mixsage.__version__}\n"


@pytest.mark.parametrize("asked", [["--help"], ["train", "--help"]])
def test_a_reader_that_has_had_enough_is_no_error(asked):
    with subprocess.Popen(
        [sys.executable, "-m", "mixsage", *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        command.stdout.close()  # before anything is written
        assert command.stderr.read() == ""
        assert command.wait(timeout=120) == 0
