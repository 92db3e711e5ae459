"""One run of a study in a process of its own: ``python -m mixsage.study.worker SPEC RUN FOLDER [--smoke]``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from mixsage.study.execute import execute
from mixsage.study.spec import read_study
from mixsage.training import Interrupted
from mixsage.training.checkpoint import write_atomically
from mixsage.training.progress import Lines
from mixsage.training.signals import EXIT_CODE


def main(spec: str, name: str, folder: str, *flags: str) -> int:
    """Make the run, and leave its record beside its weights."""
    (run,) = [run for run in read_study(Path(spec), smoke="--smoke" in flags).runs if run.name == name]
    try:
        record = execute(run, Path(folder), progress=Lines())
    except Interrupted as stop:
        sys.stdout.write(f"{stop}\n")
        return EXIT_CODE
    write_atomically(Path(folder) / name / "record.json", record.to_json().encode())
    return 0


if __name__ == "__main__":
    # Ctrl-C reaches a whole terminal; the study then asks its workers to stop itself, and a second signal would be obeyed at once.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.exit(main(*sys.argv[1:]))
