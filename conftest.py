"""The Python blocks of the documentation are tests: they run in order, a page in one namespace, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

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
