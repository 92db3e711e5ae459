"""Runs on the embedded sample begin faster where it is unpacked only once."""

from functools import cache

import pytest


@pytest.fixture(autouse=True, scope="session")
def _sample_is_unpacked_once():
    from mixsage.data import sample

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "_payload", cache(sample._payload))
        yield
