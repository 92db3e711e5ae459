"""The Python blocks of the documentation are tests: they run in order, a page in one namespace, in a folder of their own.

Where torch stands alone (`make wheel-test` says so by MIXSAGE_TORCH_ALONE), whatever imports another library is skipped: a test, a test
file, a page from that block on. Everywhere else a library that is missing is an error, so that no test is left out unseen.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


def _begin(namespace: dict[str, Any]) -> None:
    torch.manual_seed(0)
    namespace["_folders"] = Path.cwd(), tempfile.mkdtemp()
    os.chdir(namespace["_folders"][1])


def _end(namespace: dict[str, Any]) -> None:
    before, own = namespace["_folders"]
    os.chdir(before)
    shutil.rmtree(own)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["*.md"],
    setup=_begin,
    teardown=_end,
).pytest()


TORCH_ALONE = bool(os.environ.get("MIXSAGE_TORCH_ALONE"))


def _may_be_missing(error: BaseException | None) -> bool:
    """A library may be missing where torch stands alone; a module of mixsage's own that the wheel lacks may not."""
    own = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "mixsage"
    return TORCH_ALONE and isinstance(error, ModuleNotFoundError) and not own


class _TestFile(pytest.Module):
    """A test file, skipped where it imports what is not there."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if _may_be_missing(error.__cause__):
                pytest.skip(str(error.__cause__), allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _TestFile.from_parent(parent, path=module_path) if TORCH_ALONE else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    page = item.parent if item.path.suffix == ".md" else None
    if reason := getattr(page, "lacks", None):
        pytest.skip(reason)  # what this block goes on from was skipped
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if not _may_be_missing(error):
            raise
        if page:
            page.lacks = str(error)
        pytest.skip(str(error))
