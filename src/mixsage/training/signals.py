"""SIGTERM and SIGINT as a wish to stop, which the loop grants at the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 75
"""What the command exits with when it was asked to stop and saved first (EX_TEMPFAIL: try again later)."""


class Interrupted(Exception):
    """The run was asked to stop; a checkpoint was written."""


class Wish:
    """Whether somebody asked for the end; a second signal is obeyed at once."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True


@contextmanager
def watch() -> Iterator[Wish]:
    """Collect signals instead of dying of them; in a thread other than the main one, where that is impossible, nothing is watched."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, wish) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
