"""The paper's numbers, the command that makes each, and ours beside them: docs/reproducing.md, from the recipes and the records.

python tools/paper_tables.py            writes the tables between their marks anew
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mixsage.reports.published import published, title
from mixsage.study.records import Record, latest, read
from mixsage.study.spec import Planned, read_study
from mixsage.training import settings_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reproducing.md"
BEGIN, END = "<!-- paper: begin -->", "<!-- paper: end -->"

HEADINGS = {
    "main-cifar10-preactresnet18": "Main table, robustness, ranks, hours: CIFAR-10, PreActResNet18",
    "main-cifar100-preactresnet18": "Main table, robustness, ranks: CIFAR-100, PreActResNet18",
    "main-cifar100-wrn16_8": "Main table: CIFAR-100, WRN16-8",
    "main-cifar100-resnext29_4_24": "Main table, hours: CIFAR-100, ResNeXt29-4-24",
    "fewshot-mini-imagenet": "Few-shot: mini-ImageNet, ResNet12",
    "runtime-cifar10-preactresnet18": "Training cost in short: CIFAR-10, PreActResNet18",
    "runtime-cifar100-resnext29_4_24": "Training cost in short: CIFAR-100, ResNeXt29-4-24",
    "ablation-components-cifar10": "Ablation of the components: CIFAR-10",
    "ablation-components-cifar100": "Ablation of the components: CIFAR-100",
    "ablation-search-cifar10": "Share of the rearrangements that is searched: CIFAR-10",
    "ablation-search-cifar100": "Share of the rearrangements that is searched: CIFAR-100",
    "ablation-mixed-share-cifar10": "Share η of the mixed gradient: CIFAR-10",
    "ablation-mixed-share-cifar100": "Share η of the mixed gradient: CIFAR-100",
    "ablation-truncation-cifar10": "Truncation u: CIFAR-10",
    "ablation-truncation-cifar100": "Truncation u: CIFAR-100",
}
"""The studies in the order of the page."""
METRICS = {
    "accuracy": ("test accuracy (%)", "last"),
    "fgsm": ("under FGSM (%)", "fgsm"),
    "fgm": ("under FGM (%)", "fgm"),
    "gaussian": ("under Gaussian noise (%)", "gaussian"),
    "fewshot": ("5-way accuracy (%)", "fewshot_5"),
    "hours": ("hours of training", "seconds"),
    "ratio": ("time / that of Vanilla", "seconds"),
}
"""The paper's numbers by our names: heading, and the metric of our records."""
T4_HOURS = {"clean": 3.35, "mixup": 3.29, "cutmix": 3.38, "manifold": 3.44, "saliencymix": 3.45, "puzzlemix": 8.9, "comixup": 25.29, "sage": 6.83}  # fmt: skip
"""The paper's hours of 300 epochs on CIFAR-10 with PreActResNet18."""
RESNEXT_HOURS = {"clean": 9.76, "mixup": 9.67, "cutmix": 9.83, "manifold": 10.27, "saliencymix": 10.18, "puzzlemix": 22.64, "comixup": 35.65, "sage": 19.5}  # fmt: skip
"""Likewise on CIFAR-100 with ResNeXt29-4-24."""
WORK = {"wrn16_8": 3.6, "resnet12": 1.6}
"""Multiply-adds of a run, in those of CIFAR-10 with PreActResNet18, for networks whose hours the paper does not say."""


def page() -> str:
    """What stands between the marks."""
    return "\n".join(line for name in HEADINGS for line in _section(name))


def folder_of(name: str) -> Path:
    """Where the runs of a study go: studies of one data set and model share a folder, so that what they have in common is run once."""
    kind, _, rest = name.partition("-")
    if kind == "ablation":
        return Path("studies") / f"{rest.rpartition('-')[2]}-preactresnet18"
    return Path("studies") / (rest if kind == "main" else name)


def gpu_hours(runs: Sequence[Planned]) -> float:
    """Estimated on one T4, from the paper's hours."""
    return sum(_hours(run) for run in runs)


def fill(text: str) -> str:
    """The page with its tables anew."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE.name} needs the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{page()}\n{END}{after}"


def _hours(run: Planned) -> float:
    settings = settings_of(run.config)
    method = settings["method"].partition("(")[0].lower()
    base = RESNEXT_HOURS[method] if settings["model"] == "resnext29_4_24" else T4_HOURS[method] * WORK.get(settings["model"], 1)
    full = 100 if settings["model"] == "resnet12" else 300
    return base * settings["epochs"] / full


def _section(name: str) -> Iterator[str]:
    runs = read_study(ROOT / f"recipes/studies/{name}.toml").runs
    arms = {run.arm: run for run in reversed(runs)}
    arms = {arm: arms[arm] for arm in dict.fromkeys(run.arm for run in runs)}
    folder = folder_of(name)
    ours = _records(folder)
    yield f"\n### {HEADINGS[name]}\n"
    yield f"```console\n$ mixsage study run recipes/studies/{name}.toml --out {folder}\n```\n"
    yield f"| | {' | '.join(arms)} |"
    yield "|---" * (len(arms) + 1) + "|"
    for metric, (heading, key) in METRICS.items():
        theirs = [_published(run, metric) for run in arms.values()]
        short = name.startswith("runtime")
        if short != (metric == "ratio") or not any(theirs):
            continue
        found = [_mean(ours, run, key) for run in arms.values()]
        yield f"| {heading}, paper | {' | '.join(_shown(theirs, metric))} |"
        yield f"| ours | {' | '.join(_shown(found, metric, 3600))} |"
    missing = [run for run in runs if run.name not in {record.run for record in ours}]
    if missing:
        yield f"\n–: not run here: {len(missing)} runs, about {_rounded(gpu_hours(missing))} GPU-hours."


def _records(folder: Path) -> list[Record]:
    file = ROOT / folder / "records.jsonl"
    return [record for record in latest(read(file)) if record.status == "ok"] if file.exists() else []


def _mean(records: Sequence[Record], run: Planned, key: str) -> float | None:
    """Over the runs of the arm that are there."""
    stem = run.name.rpartition("-s")[0]
    values = [record.metrics[key] for record in records if record.run.rpartition("-s")[0] == stem and key in record.metrics]
    return sum(values) / len(values) if values else None


def _shown(values: Sequence[float | None], metric: str, hour: float = 1) -> list[str]:
    """Cells; an hour in the unit of the values turns times into hours, and the first value, no mixing's, into a ratio's base."""
    unit = values[0] if metric == "ratio" else hour if metric == "hours" else 1
    return ["–" if value is None or unit is None else f"{value / unit:.2f}" for value in values]


def _published(run: Planned, metric: str) -> float | None:
    settings = settings_of(run.config)
    metric = "hours" if metric == "ratio" else metric
    record = Record(
        run=run.name, arm=run.arm, data=settings["data"], model=settings["model"], seed=run.seed, epochs=settings["epochs"], method=settings["method"], settings=settings,
    )  # fmt: skip
    return published(record, title("methods", run.arm), metric)


def _rounded(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 10 else f"{hours:.1f}"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
