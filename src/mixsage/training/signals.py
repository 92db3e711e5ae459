"""SIGTERM and SIGINT as a wish to stop, which the loop grants at the end of a step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 75
"""What the command exits with when it was asked to stop and saved first (EX_TEMPFAIL: try again later)."""


ONE_WISH = 1.0
"""Seconds in which further signals are taken for the first once more: `timeout` and launchers send theirs to the run and to its group."""


class Interrupted(Exception):
    """The run was asked to stop; a checkpoint was written."""


class Wish:
    """Whether somebody asked for the end; who asks again, a second later, is obeyed at once."""

    def __init__(self) -> None:
        self.stop = False
        self.since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        if not self.stop:
            self.stop, self.since = True, now
        elif now - self.since > ONE_WISH:
            raise KeyboardInterrupt


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
