"""Downloads: once, though several processes may want the same files at the same time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

from mixsage.data.dataset import DataError
from mixsage.data.extras import need

log = logging.getLogger(__name__)

LOCK = ".mixsage-download.lock"


def fetch(name: str, url: str, root: Path, *, present: Callable[[], bool], download: Callable[[], object]) -> None:
    """Download what is not present; whoever comes while another process does waits for it."""
    if present() and not (root / LOCK).exists():
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        with need("filelock").FileLock(root / LOCK):
            if not present():
                log.warning("%s is not in %s; downloading %s to there", name, root, url)
                download()
    except (URLError, OSError, RuntimeError) as error:
        raise DataError(
            f"{name} is not in {root}, and downloading it failed ({' '.join(str(error).split())}); get {url} where there is a network and put it into {root}, "
            "or say where the files are: MIXSAGE_DATA, or --data-dir"
        ) from error
