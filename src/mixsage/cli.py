"""The command: one verb a command. Each imports what it needs only when it is used."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from mixsage.errors import not_installed, unknown_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command: the exit status of a verb."""
    logging.basicConfig(format="mixsage: %(message)s", level=logging.WARNING)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _answer(given)
        sys.stdout.flush()  # here, where a reader that has gone can still be dealt with
        return status
    except KeyboardInterrupt:
        return _fail("interrupted", status=130)
    except BrokenPipeError:
        # Whoever read our output has had enough, as in `mixsage train --help | head`; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _said() as error:
        if os.environ.get("MIXSAGE_DEBUG"):
            raise
        return _fail(str(error))


def _answer(given: list[str]) -> int:
    """What was asked for: help, the version, or a verb's work."""
    if not given or given[0] in {"-h", "--help", "help"}:
        print(_usage())
        return 0
    if given[0] in {"-V", "--version"}:
        import mixsage

        print(f"mixsage {mixsage.__version__}")
        return 0
    verb, rest = given[0], given[1:]
    if verb not in VERBS:
        return _fail(unknown_name("command", verb, VERBS))
    if not {"-h", "--help"}.isdisjoint(rest):
        print(_help(verb, rest))
        return 0
    return VERBS[verb](rest)


def _said() -> tuple[type[Exception], ...]:
    """Errors whose message is all that a user needs; everything else is a fault of ours and keeps its traceback."""
    from mixsage.training import DiskFull, NonFiniteLoss, OutOfMemory
    from mixsage.training.checkpoint import CheckpointError
    from mixsage.training.runs import RunError

    return (ValueError, RunError, CheckpointError, NonFiniteLoss, OutOfMemory, DiskFull, ModuleNotFoundError, OSError)


def _fail(message: str, status: int = 2) -> int:
    print(f"mixsage: {message}", file=sys.stderr)
    return status


def _usage() -> str:
    lines = [f"  {name:<10} {_summary(verb)}" for name, verb in VERBS.items()]
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


def _help(verb: str, rest: Sequence[str]) -> str:
    """What a verb does, its examples, its flags; those of `study run` are the flags of StudyRun."""
    summary, _, examples = (VERBS[verb].__doc__ or "").partition("\n")
    text = "\n".join([summary, "", *(f"  {line.strip()}" for line in examples.strip().splitlines())])
    inner = rest[0].capitalize() if rest and not rest[0].startswith("-") else ""
    known = vars(_arguments())
    kind = known.get(verb.capitalize()) or known.get(verb.capitalize() + inner)
    return text if kind is None else f"{text}\n{_arguments().help_text(kind)}"


def _summary(verb: Callable[[list[str]], int]) -> str:
    return (verb.__doc__ or "").splitlines()[0]


def _arguments() -> Any:
    try:
        from mixsage import arguments
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed("the command", error.name or "tyro", "train")) from error
    return arguments


# ---------------------------------------------------------------------------------------------------------------------- train


def _train(given: list[str]) -> int:
    """Train a model on images, with any method.

    mixsage train --data photos --model preactresnet18 --method sage --epochs 30 --out runs/first
    mixsage train --recipe recipes/small/cifar10-5k.toml --seed 1 --out runs/small-1
    mixsage train --recipe recipes/small/cifar10-5k.toml --smoke      does it run? seconds, on embedded images
    mixsage train --resume runs/first      continue where it stopped, with the same settings
    """
    arguments = _arguments()
    from mixsage.training import Config, Interrupted, RunFolder, progress, read_recipe, train
    from mixsage.training.signals import EXIT_CODE

    resumed, others = _take(given, "--resume")
    if resumed is not None:
        if others:
            raise ValueError(
                f"--resume goes alone, as the run continues with the settings it began with; got {' '.join(others)} too"
            )
        config = RunFolder(Path(resumed)).config()
    else:
        recipe, others = _take(given, "--recipe")
        if _take(others, "--recipe")[0] is not None:
            raise ValueError("--recipe is given twice; one recipe goes into a run, and flags override it")
        base = arguments.Train.of(recipe and Path(recipe), read_recipe(Path(recipe)) if recipe else Config())
        asked = arguments.read(arguments.Train, "train", given, base)
        config = asked.config
        if asked.smoke:
            return _smoke(config)
    _import_fabric()
    shown = progress.for_stream()
    try:
        folder = train(config, resume=resumed is not None, progress=shown)
    except Interrupted as stop:
        if _is_first():
            shown.say(str(stop))
        # Fabric's first process is killed when one that it started ends with anything but 0.
        return EXIT_CODE if _is_first() else 0
    if _is_first():
        shown.say(f"done: {folder.weights}")
    return 0


def _smoke(config: Any) -> int:
    """A trial of settings: trained, judged, reported; in a folder of its own."""
    from mixsage.reports.page import report
    from mixsage.study.execute import execute
    from mixsage.study.records import append
    from mixsage.study.spec import Planned
    from mixsage.training import progress
    from mixsage.training.smoke import smoke

    out = config.run.out or _scratch()
    run = Planned(name="run", arm=config.method.method, seed=config.run.seed, config=smoke(config))
    record = execute(run, out, progress=progress.Lines())
    append(out / "records.jsonl", record)
    print("  ".join(f"{name} {record.metrics[name]:.4g}" for name in sorted(record.metrics)))
    print(f"the accuracies of a trial mean nothing; its report: {report([record], out / 'report.html')[0]}")
    return 0


def _scratch() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="mixsage-smoke-"))


def _take(given: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag that has to be known before the others are read, and the arguments without it."""
    for i, argument in enumerate(given):
        if argument == flag:
            if i + 1 == len(given):
                raise ValueError(f"{flag} needs a path")
            return given[i + 1], given[:i] + given[i + 2 :]
        if argument.startswith(f"{flag}="):
            return argument.removeprefix(f"{flag}="), given[:i] + given[i + 1 :]
    return None, given


def _is_first() -> bool:
    """Whether this is the first of several processes, which speaks for all."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


def _import_fabric() -> None:
    """Fabric without torchmetrics, which it would import to look at its version, and torchvision and SciPy with it: seconds at every start."""
    if "torchmetrics" not in sys.modules:
        sys.modules["torchmetrics"] = None  # type: ignore[assignment]  # Python's way to say that there is no such module
        with suppress(ModuleNotFoundError):  # where Fabric is missing, the trainer says so
            import lightning_fabric  # noqa: F401
        del sys.modules["torchmetrics"]


# -------------------------------------------------------------------------------------------------------------------- predict


def _predict(given: list[str]) -> int:
    """Name what images show, with the model of a run.

    mixsage predict runs/first photo.jpg more/ --top-k 3 > what.csv
    """
    arguments = _arguments()
    from mixsage.training.predict import predict

    asked = arguments.read(arguments.Predict, "predict", given)
    for line in predict(
        asked.run,
        asked.images,
        top_k=asked.top_k,
        form=asked.format,
        device=asked.device,
        batch_size=asked.batch_size,
        which=asked.weights,
        skip_corrupt=asked.skip_corrupt,
    ):
        print(line)
    return 0


# --------------------------------------------------------------------------------------------------------------------- export


def _export(given: list[str]) -> int:
    """Write the model of a run as a file that runs without mixsage.

    mixsage export runs/first --format onnx
    """
    arguments = _arguments()
    from mixsage.training.export import export

    asked = arguments.read(arguments.Export, "export", given)
    print(export(asked.run, form=asked.format, out=asked.out, which=asked.weights))
    return 0


# -------------------------------------------------------------------------------------------------------------------- methods


def _methods(given: list[str]) -> int:
    """List the methods, or the settings of some.

    mixsage methods
    mixsage methods sage
    """
    import mixsage
    from mixsage.training.describe import settings

    for name in given or mixsage.available():
        method = mixsage.get(name)
        print(f"{name:<12} {method.__name__}: {(method.__doc__ or '').splitlines()[0]}")
        if given:
            for setting in settings(method):
                print(f"    {setting.name} = {setting.default!r}\n        {' '.join(setting.text.split())}")
            for preset, values in method.presets.items():
                print(f"    preset {preset}: {', '.join(f'{key}={value}' for key, value in values.items())}")
    return 0


# ------------------------------------------------------------------------------------------------------------------- evaluate


def _evaluate(given: list[str]) -> int:
    """Judge a run or any model: accuracy, calibration, robustness, few-shot.

    mixsage evaluate runs/first
    mixsage evaluate timm:resnet18 --pretrained --data imagenet
    mixsage evaluate timm:resnet18 --pretrained --data photos --shots 1 5
    mixsage evaluate package.module:factory --weights model.pt --data cifar10 --mean 0.49 0.48 0.45 --std 0.25 0.24 0.26 --json
    mixsage evaluate runs/first --data novel --shots 1 5
    """
    arguments = _arguments()
    from mixsage.evaluation.judge import Subject, device_for, judge

    asked = arguments.read(arguments.Evaluate, "evaluate", given)
    subject = Subject(
        target=asked.target,
        data=asked.data,
        data_dir=asked.data_dir,
        weights=asked.weights,
        pretrained=asked.pretrained,
        width=asked.width,
        mean=asked.mean,
        std=asked.std,
        which=asked.which,
        device=device_for(asked.device),
        batch_size=asked.batch_size,
        seed=asked.seed,
    )
    # What a user's module or an attack's library prints must not stand among the JSON.
    with redirect_stdout(sys.stderr) if asked.json else nullcontext():
        found = judge(subject, extras=asked.extras, shots=asked.shots, ways=asked.ways, tasks=asked.tasks)
    if asked.json:
        print(json.dumps(found))
        return 0
    for name, value in found.items():
        print(f"  {name:<22}{value:>10.4f}" if name == "nll" else f"  {name:<22}{value:>8.2f} %")
    return 0


# ---------------------------------------------------------------------------------------------------------------------- study


def _study(given: list[str]) -> int:
    """Make a grid of runs, or say what their records support.

    mixsage study run recipes/studies/cifar10-5k.toml --smoke      does it run? seconds, on embedded images
    mixsage study run recipes/studies/cifar10-5k.toml --out studies/cifar10-5k --jobs 2
    mixsage study stats studies/cifar10-5k/records.jsonl --baseline "no mixing"
    """
    parts: dict[str, Callable[[list[str]], int]] = {"run": _study_run, "stats": _study_stats}
    if not given or given[0] not in parts:
        raise ValueError(
            unknown_name("part of study", given[0], parts) if given else f"say which: study {' or study '.join(parts)}"
        )
    return parts[given[0]](given[1:])


def _study_run(given: list[str]) -> int:
    arguments = _arguments()
    from mixsage.study.runner import run_study
    from mixsage.training import Interrupted
    from mixsage.training.signals import EXIT_CODE

    asked = arguments.read(arguments.StudyRun, "study run", given)
    out = asked.out or (_scratch() if asked.smoke else Path("studies") / asked.spec.stem)
    try:
        outcome = run_study(asked.spec, out, jobs=asked.jobs, ray=asked.ray, retries=asked.retries, smoke=asked.smoke)
    except Interrupted as stop:
        print(f"{stop}\nto go on with the whole study, give the same command again")
        return EXIT_CODE
    if outcome.failed:
        return 1
    if asked.smoke:
        from mixsage.reports.page import report
        from mixsage.study.records import read
        from mixsage.study.spec import read_study

        made = report(read(out / "records.jsonl"), out / "report.html", baseline=read_study(asked.spec).baseline)
        print(f"the accuracies of a trial mean nothing; its report: {made[0]}")
    return 0


def _study_stats(given: list[str]) -> int:
    arguments = _arguments()
    from mixsage.study.records import read_all, select
    from mixsage.study.summary import summarise, table

    asked = arguments.read(arguments.StudyStats, "study stats", given)
    arms = [*filter(None, [asked.baseline]), *asked.arms] if asked.arms else None
    chosen = select(read_all(asked.records), arms=arms, data=asked.data, model=asked.model, status=None)
    summary = summarise(chosen, metric=asked.metric, baseline=asked.baseline, costs=asked.costs)
    print(json.dumps(summary) if asked.json else table(summary))
    return 0


# ---------------------------------------------------------------------------------------------------------- report, preview


def _report(given: list[str]) -> int:
    """Records to one page with tables and figures, beside the published numbers.

    mixsage report studies/cifar10-5k/records.jsonl --out report.html
    mixsage report studies/cifar10-5k/records.jsonl --out report.html --run runs/first      with pictures of what the methods do
    mixsage report studies/cifar10-5k/records.jsonl --out report.md
    """
    arguments = _arguments()
    from mixsage.reports import markdown, page
    from mixsage.study.records import read_all

    asked = arguments.read(arguments.Report, "report", given)
    report = markdown.report if asked.out.suffix.lower() == ".md" else page.report
    records, pictures = read_all(asked.records), []
    if asked.run is not None or asked.data is not None:
        from mixsage.evaluation.preview import drawings

        pictures = drawings(source=asked.data, folder=asked.data_dir, run=asked.run, methods=asked.method)
    made = report(records, asked.out, title=asked.title, baseline=asked.baseline, costs=asked.costs, pictures=pictures)
    for path in made:
        print(path)
    return 0


def _preview(given: list[str]) -> int:
    """Draw what methods do to your images, before any long training.

    mixsage preview --data photos --method mixup cutmix sage
    mixsage preview --run runs/first
    """
    arguments = _arguments()
    from mixsage.evaluation.preview import preview

    asked = arguments.read(arguments.Preview, "preview", given)
    for path in preview(asked.out, source=asked.data, folder=asked.data_dir, run=asked.run, methods=asked.method, seed=asked.seed):
        print(path)
    return 0


# ---------------------------------------------------------------------------------------------------------------------- bench


def _bench(given: list[str]) -> int:
    """Measure what things cost, as ratios beside their goals, in one run.

    mixsage bench --json bench.json --picture bench.svg
    mixsage bench steps overhead --rounds 9
    mixsage bench steps --device cuda
    """
    arguments = _arguments()
    asked = arguments.read(arguments.Bench, "bench", given)
    import torch

    from mixsage import bench
    from mixsage.bench import text

    if asked.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no cuda device that torch {torch.__version__} can use; choose --device cpu")
    if asked.picture is not None:
        # Before anything is measured, so that hours of it are not lost to a wrong ending, or for want of matplotlib.
        from mixsage.reports.figures.style import check_format

        check_format(asked.picture)
    for path in (asked.json, asked.picture):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise ValueError(f"{path} is a folder; name a file in it")
    settings = bench.Settings(device=torch.device(asked.device), rounds=asked.rounds, quick=asked.quick)
    found, machine = [], bench.machine_of(settings)
    print(text.machine(machine) + "\n")
    for comparison in bench.run(asked.names, settings):
        found.append(comparison)
        print(text.table(comparison, quick=asked.quick) + "\n", flush=True)
    results = bench.results_of(found, settings, machine)
    if asked.json is not None:
        results.write(asked.json)
    if asked.picture is not None:
        from mixsage.bench.picture import picture
        from mixsage.reports.figures.style import save

        save(picture(results), asked.picture)
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "study": _study,
    "report": _report,
    "preview": _preview,
    "bench": _bench,
    "predict": _predict,
    "export": _export,
    "methods": _methods,
}
"""The commands by name."""


if __name__ == "__main__":
    sys.exit(main())
