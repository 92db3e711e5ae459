"""The command: one verb a command. Each imports what it needs only when it is used."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mixsage.errors import unknown_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command: the exit status of a verb."""
    logging.basicConfig(format="mixsage: %(message)s", level=logging.WARNING)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if given[0] == "--version":
        import mixsage

        print(f"mixsage {mixsage.__version__}")
        return 0
    verb, rest = given[0], given[1:]
    if verb not in VERBS:
        return _fail(unknown_name("command", verb, VERBS))
    try:
        return VERBS[verb](rest)
    except _said() as error:
        if os.environ.get("MIXSAGE_DEBUG"):
            raise
        return _fail(str(error))


def _said() -> tuple[type[Exception], ...]:
    """Errors whose message is all that a user needs; everything else is a fault of ours and keeps its traceback."""
    from mixsage.training.checkpoint import CheckpointError
    from mixsage.training.runs import RunError
    from mixsage.training.trainer import NonFiniteLoss, OutOfMemory

    return (ValueError, RunError, CheckpointError, NonFiniteLoss, OutOfMemory, ModuleNotFoundError, OSError)


def _fail(message: str) -> int:
    print(f"mixsage: {message}", file=sys.stderr)
    return 2


def _usage() -> str:
    lines = [f"  {name:<10} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: mixsage COMMAND [OPTIONS]",
            "",
            "Saliency-guided mixing for image classification.",
            "",
            *lines,
            "",
            "mixsage COMMAND --help says more.",
        ]
    )


_Arguments = TypeVar("_Arguments")


def _parse(
    kind: type[_Arguments], verb: Callable[[list[str]], int], arguments: list[str], default: _Arguments | None = None
) -> _Arguments:
    try:
        import tyro
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the command needs the training extra: pip install 'mixsage[train]'") from None
    name = verb.__name__.removeprefix("_")
    text = "\n".join(line.strip() for line in (verb.__doc__ or "").splitlines())
    options: dict[str, Any] = {} if default is None else {"default": default}
    parsed: _Arguments = tyro.cli(
        tyro.conf.OmitArgPrefixes[kind], prog=f"mixsage {name}", description=text, args=arguments, **options
    )  # type: ignore[misc,valid-type]
    return parsed


def _take(arguments: list[str], flag: str) -> str | None:
    """The value of a flag that has to be known before the others are read."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{flag}="):
            return argument.removeprefix(f"{flag}=")
    return None


# ---------------------------------------------------------------------------------------------------------------------- train


def _train(arguments: list[str]) -> int:
    """Train a model on images, with any method.

    mixsage train --data FOLDER --model preactresnet18 --method sage --epochs 30 --out runs/first
    mixsage train --recipe recipes/cifar10/sage.toml --seed 1 --out runs/sage-1
    mixsage train --resume runs/first
    """
    from mixsage.arguments import Train
    from mixsage.training import Config, Interrupted, RunFolder, progress, read_recipe, train
    from mixsage.training.signals import EXIT_CODE

    recipe, resumed = _take(arguments, "--recipe"), _take(arguments, "--resume")
    asks_help = not {"-h", "--help"}.isdisjoint(arguments)
    if resumed is not None and not asks_help:
        if len(arguments) > 2:
            raise ValueError("--resume goes alone: the run continues with the settings it was begun with")
        config, resume = RunFolder(Path(resumed)).config(), True
    else:
        base = Train(recipe=Path(recipe) if recipe else None, config=read_recipe(Path(recipe)) if recipe else Config())
        config, resume = _parse(Train, _train, arguments, base).config, False
    shown = progress.for_stream()
    try:
        folder = train(config, resume=resume, progress=shown)
    except Interrupted as stop:
        shown.say(str(stop))
        return EXIT_CODE
    shown.say(f"done: {folder.weights}")
    return 0


# -------------------------------------------------------------------------------------------------------------------- predict


def _predict(arguments: list[str]) -> int:
    """Name what images show, with the model of a run.

    mixsage predict runs/first photo.jpg more/*.png --top-k 3
    """
    from mixsage.arguments import Predict
    from mixsage.training.predict import predict

    given = _parse(Predict, _predict, arguments)
    for line in predict(
        given.run, given.images, top_k=given.top_k, form=given.format, device=given.device, batch_size=given.batch_size
    ):
        print(line)
    return 0


# --------------------------------------------------------------------------------------------------------------------- export


def _export(arguments: list[str]) -> int:
    """Write the model of a run as a file that runs without mixsage.

    mixsage export runs/first --format onnx
    """
    from mixsage.arguments import Export
    from mixsage.training.export import export

    given = _parse(Export, _export, arguments)
    print(export(given.run, form=given.format, out=given.out))
    return 0


# -------------------------------------------------------------------------------------------------------------------- methods


def _methods(arguments: list[str]) -> int:
    """List the methods, or the settings of one.

    mixsage methods sage
    """
    import mixsage
    from mixsage.training.notation import settings_of_mixer

    if not {"-h", "--help"}.isdisjoint(arguments):
        print(f"usage: mixsage methods [NAME]\n\n{(_methods.__doc__ or '').strip()}")
        return 0
    for name in arguments or mixsage.available():
        method = mixsage.get(name)
        print(f"{name:<12} {method.__name__}: {(method.__doc__ or '').splitlines()[0]}")
        if arguments:
            for setting, default, text in settings_of_mixer(method):
                print(f"    {setting} = {default}\n        {text}")
            for preset, settings in method.presets.items():
                print(f"    preset {preset}: {', '.join(f'{key}={value}' for key, value in settings.items())}")
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {"train": _train, "predict": _predict, "export": _export, "methods": _methods}
"""The commands by name."""


if __name__ == "__main__":
    sys.exit(main())
