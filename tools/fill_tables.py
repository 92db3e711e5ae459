"""Fill the tables that stand between marks in README.md and docs, and draw docs/images/bench.svg, from benchmarks/results/bench_cpu.json, which `mixsage bench` wrote,
from bench_cuda.json, which it wrote on a GPU, and from what scripts in benchmarks wrote beside them: solvers_cpu.json, search_regret.json, fit_engines_*.json, integrations_cpu.jsonl.

python tools/fill_tables.py             write them
python tools/fill_tables.py --check     say which documents disagree with the results, and fail if any does

A mark is a pair of comments, <!-- methods: begin --> and <!-- methods: end -->; `TABLES` has the names that are filled here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where a test loads this file, its neighbours are not on the path

import integration_tables
import search_tables
import solver_tables

from mixsage.bench.picture import picture
from mixsage.bench.results import Comparison, Results, Row
from mixsage.bench.steps import COMPILED
from mixsage.bench.text import goal, machine, number, verdict
from mixsage.reports.figures.style import save

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "bench_cpu.json"
RESULTS_CUDA = RESULTS.with_name("bench_cuda.json")
PICTURE = ROOT / "docs" / "images" / "bench.svg"
"""The numbers with a goal and the growth curves, drawn."""
UNKNOWN = "–"
"""What stands where nothing was measured."""
UNMEASURED = "Not measured yet."
"""What stands in place of a table."""
CARDS = ("mixup", "cutmix", "manifold", "saliencymix", "puzzlemix", "comixup")
"""The cards that say what a step costs; SAGE's says more."""


def methods(old: str, results: Results | None) -> str:
    """The last column of the table of methods: what a step costs. The other columns are written by hand, and stay."""
    return "\n".join(_with_cost(line, results) for line in old.splitlines())


def bench(old: str, results: Results | None) -> str:
    """All numbers beside their goals, and where they were measured."""
    return UNMEASURED if results is None else _numbers(results, results.comparisons)


def search_cost(old: str, results: Results | None) -> str:
    """Numbers and curves of the search alone."""
    found = [] if results is None else [one for one in results.comparisons if one.name in ("search", "growth")]
    if results is None or not found:
        return UNMEASURED
    curves = [curve for comparison in found for curve in comparison.curves]
    lines = [
        f"- {curve.name}: "
        + ", ".join(f"{1e3 * seconds:.3g} ms at {side}×{side}" for side, seconds in zip(curve.sides, curve.seconds, strict=True))
        for curve in curves
    ]
    settings = [f"- {comparison.name}: {comparison.setting}" for comparison in found]
    return "\n".join([_numbers(results, found), "", *settings, *lines])


def step_cost(names: Mapping[str, str], results: Results | None) -> str:
    """A card's sentence on what a step costs: rows of the comparison `steps`, and what is said of each."""
    found = {name: None if results is None else results.row("steps", name) for name in names}
    if results is None or None in found.values():
        return UNMEASURED
    ratios = (
        f"**{row.spread.median:.2f}** times a plain one{names[name]} (5 % to 95 % of {row.spread.count} rounds: {row.spread.low:.2f} to {row.spread.high:.2f})"
        for name, row in found.items()
        if row is not None
    )
    setting = next(one.setting for one in results.comparisons if one.name == "steps")
    return f"A step takes {', '.join(ratios)}: `mixsage bench steps`; {setting}; {machine(results.machine).split(';')[0]}."


def sage_cost(results: Results | None) -> str:
    """SAGE's sentences: both forms, and what comes beside the passes."""
    whole, memory = (None if results is None else results.row("overhead", name) for name in ("whole", "memory 32"))
    if whole is None or memory is None:
        return UNMEASURED
    spread = whole.spread
    return (
        f"{step_cost({'sage': '', 'sage one pass': ' in one pass'}, results)}\n\n"
        f"What comes beside the two passes (smoothing, normalising, searching, mixing, targets) takes **{number(whole, spread.median)}** of one forward "
        f"and backward pass ({number(whole, spread.low)} to {number(whole, spread.high)}), and {memory.spread.median:.1f} copies of the batch of extra memory "
        "at its peak: `mixsage bench overhead`."
    )


def gpu_cost(names: Mapping[str, str], results: Results | None) -> str:
    """A card's sentence on what a step costs on a GPU, with a plain model and with a compiled one."""
    if results is None:
        return UNMEASURED
    said = []
    for name, form in names.items():
        plain, compiled = (results.row("steps", name + ending) for ending in ("", COMPILED))
        if plain is None or compiled is None:
            return UNMEASURED
        ratios = [f"{row.spread.median:.2f} ({row.spread.low:.2f} to {row.spread.high:.2f})" for row in (plain, compiled)]
        said.append(f"**{ratios[0]}** times a plain one{form}, {ratios[1]} with compiled models")
    return f"On an {results.machine['gpu']}, with the same network and batch, a step takes {'; '.join(said)}: `mixsage bench steps --device cuda`."


TABLES: dict[str, Callable[[str, Results | None], str]] = {
    "methods": methods,
    "bench": bench,
    "search-cost": search_cost,
    "search-regret": lambda old, results: search_tables.regret(search_tables.known(search_tables.REGRET)),
    "search-rescored": lambda old, results: search_tables.rescored(search_tables.known(search_tables.REGRET)),
    "search-model": lambda old, results: search_tables.model([search_tables.known(path) for path in search_tables.MODELS]),
    "cost-sage": lambda old, results: sage_cost(results),
    **{f"cost-{name}": lambda old, results, name=name: step_cost({name: ""}, results) for name in CARDS},  # type: ignore[misc]  # the default binds the loop's variable
    "bench-cuda": lambda old, results: bench(old, known(RESULTS_CUDA)),
    "gpu-sage": lambda old, results: gpu_cost({"sage": "", "sage one pass": " in one pass"}, known(RESULTS_CUDA)),
    **{f"gpu-{name}": lambda old, results, name=name: gpu_cost({name: ""}, known(RESULTS_CUDA)) for name in CARDS},  # type: ignore[misc]  # the default binds the loop's variable
    "integrations": lambda old, results: integration_tables.overhead(),
    "solvers-puzzle": lambda old, results: solver_tables.puzzle(solver_tables.known()),
    "solvers-comixup": lambda old, results: solver_tables.comixup(solver_tables.known()),
}
"""What makes the text between the marks of a name, from the text that is there and the results, if there are any."""


def filled(text: str, results: Results | None) -> str:
    """A document with its tables as the results have them; what stands between other marks stays."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        pattern = f"(?<={re.escape(begin)}).*?(?={re.escape(end)})"
        text = re.sub(pattern, lambda found, make=make: make(found.group(), results), text, flags=re.DOTALL)  # type: ignore[misc]  # the default binds the loop's variable
    return text


def documents(root: Path = ROOT) -> Iterator[Path]:
    """What may hold tables."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def known(path: Path = RESULTS) -> Results | None:
    """The results, if there are any; a quick run is none, as its times mean nothing."""
    if not path.exists():
        return None
    results = Results.read(path)
    if results.settings.get("quick"):
        raise ValueError(f"{path} was written by a quick run, whose times mean nothing; run mixsage bench without --quick")
    return results


def _numbers(results: Results, comparisons: Sequence[Comparison]) -> str:
    """Every number of comparisons beside its goal, and where they were measured."""
    lines = ["| comparison | number | median | 5 % to 95 % | rounds | goal | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for comparison in comparisons:
        for row in comparison.rows:
            spread = row.spread
            cells = (
                comparison.name,
                row.text,
                number(row, spread.median),
                f"{number(row, spread.low)} to {number(row, spread.high)}",
                str(spread.count),
                goal(row),
                verdict(row),
            )
            lines.append("| " + " | ".join(cells) + " |")
    notes = [f"- {comparison.name}: {note}" for comparison in comparisons for note in comparison.notes]
    return "\n".join([*lines, "", f"Measured on: {machine(results.machine)}.", *([""] if notes else []), *notes])


def _with_cost(line: str, results: Results | None) -> str:
    cells = line.split(" | ")
    card = re.search(r"methods/(\w+)\.md", cells[0])
    if card is None:
        return line  # the heading
    name = card.group(1) + (" one pass" if "passes=1" in cells[0] else "")
    return " | ".join([*cells[:-1], f"{'1' if name == 'clean' else _cost(name, results)} |"])


def _cost(name: str, results: Results | None) -> str:
    row: Row | None = None if results is None else results.row("steps", name)
    return UNKNOWN if row is None else f"{row.spread.median:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    results, stale = known(), 0
    for path in documents():
        text = path.read_text(encoding="utf-8")
        wanted = filled(text, results)
        if wanted != text:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {'does not agree with the results' if check else 'filled'}")
            if not check:
                path.write_text(wanted, encoding="utf-8")
    if results is not None and not check:
        save(picture(results), PICTURE)
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
