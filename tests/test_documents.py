"""What the documents name is there: links, files, commands with their flags, targets of make. Their Python is run by the tests as well."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("tyro")

from mixsage import Mixer, available, cli, get

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
COMMAND = re.compile(r"(?:^\$ (?:[A-Z_]+=\S+ )?|`)mixsage ([a-z]+)((?: [^`\n#|>]*)?)", re.MULTILINE)
FLAG = re.compile(r"(?<=\s)--([a-z-]+)")
FILE = re.compile(r"`((?:src|docs|recipes|examples|benchmarks|tools|studies|tests)/[\w./-]+\.(?:py|toml|md|jsonl?|png))`")
TARGET = re.compile(r"(?:^\$ |`)make ([a-z-]+)", re.MULTILINE)


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_flags_exist(page):
    for verb, rest in COMMAND.findall(text_of(page)):
        assert verb in cli.VERBS, verb
        words = rest.split()
        # The help of `study run` is not that of `study stats`.
        text = cli._help(verb, words[:1] if verb == "study" else [])
        known = set(re.findall(r"--(?:\[no-\])?([a-z-]+)", text)) | {"help", "resume"}
        known |= {f"no-{flag}" for flag in re.findall(r"--\[no-\]([a-z-]+)", text)}
        assert set(FLAG.findall(rest)) <= known, f"mixsage {verb}{rest}"


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_project_exist(page):
    # Words in capitals stand for names; the tutorial's method is the reader's; results are what the commands beside them write.
    named = [file for file in FILE.findall(text_of(page)) if not re.search(r"[A-Z]{3}|stripes|^benchmarks/results/", file)]
    assert not [file for file in named if not (ROOT / file).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_exist(page):
    makefile = ROOT / "Makefile"
    targets = set(re.findall(r"^([a-z-]+):", makefile.read_text(), re.MULTILINE)) if makefile.exists() else set()
    assert set(TARGET.findall(text_of(page))) <= targets


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("name", available())
def test_a_card_has_every_setting_of_its_method(name):
    settings = text_of(f"docs/methods/{name}.md").partition("\n## Settings\n")[2].partition("\n## ")[0]
    common = {field.name for field in fields(Mixer)}
    assert not [field.name for field in fields(get(name)) if field.name not in common and f"`{field.name}`" not in settings]


def test_the_checks_find_what_is_wrong():
    text = "```console\n$ mixsage train --data photos --metod sage\n$ make dmo\n```\n`mixsage trian x`, `src/mixsage/nothing.py`"
    assert [verb for verb, _ in COMMAND.findall(text)] == ["train", "trian"]
    assert FLAG.findall(COMMAND.findall(text)[0][1]) == ["data", "metod"]
    assert TARGET.findall(text) == ["dmo"]
    assert FILE.findall(text) == ["src/mixsage/nothing.py"]
