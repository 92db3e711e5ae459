"""The page: self-contained, escaped, every cell leads to its configuration, and a browser finds nothing to complain of."""

import base64
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mixsage.reports.markdown import report as markdown_report
from mixsage.reports.page import charts, page, report
from mixsage.study.records import Record, RecordError, append, read
from report_records import study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Reader(HTMLParser):
    """Ids, links, addresses and text of a page."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.addresses, self.tags, self.alts = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        self.addresses += [found[name] for name in ("src", "href", "srcset", "action") if name in found and tag != "a"]
        self.alts += [found.get("alt")] if tag == "img" else []


def read_page(text):
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.fixture(scope="module")
def records():
    return study()


def test_the_page_needs_nothing_from_outside(records):
    found = read_page(page(records))
    assert found.addresses
    assert all(address.startswith("data:") for address in found.addresses)
    assert all(link.startswith("#") for link in found.links)
    assert not {"script", "iframe", "object", "embed", "form"} & set(found.tags)


def test_every_link_leads_somewhere_and_every_id_is_one(records):
    found = read_page(page(records))
    assert len(set(found.ids)) == len(found.ids)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)


def test_cells_lead_to_their_configuration(records):
    text = page(records)
    anchor = re.search(r'<th scope="row">SAGE</th><td[^>]*><a href="#(configuration-\d+)">', text)[1]
    section = text[text.index(f'<div id="{anchor}"') :].partition("</details>")[0]
    for expected in ("cifar10-preactresnet18-sage-s0", "0, 1, 2", "sage", "0.2", "100, 200", "2.15.0", "0123456789ab"):
        assert expected in section


def test_figures_are_in_the_page_with_words_for_those_who_cannot_see_them(records):
    found = read_page(page(records))
    pictures = [address for address in found.addresses if address.startswith("data:image/svg")]
    assert len(pictures) == len(charts(records)) == 4
    assert all(base64.b64decode(address.partition(",")[2]).startswith(b"<svg") for address in pictures)
    assert all(found.alts)


def test_names_from_users_are_escaped(records):
    evil = "<script>alert(1)</script>\"'&{{ 'a' * 7 }}"
    changed = [
        replace(record, arm=evil, run=f"{evil}{record.run}", settings={evil: evil, **record.settings}) for record in records[:3]
    ]
    failed = replace(records[3], run="gone", status="failed", error=evil, metrics={})
    text = page([*changed, *records[6:], failed], title=evil)
    assert "<script" not in text
    assert "aaaaaaa" not in text  # a template in a name stays text
    found = read_page(text)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert "1 run failed" in text


def test_names_that_look_like_formulas_are_drawn_as_they_are(records, tmp_path):
    odd = r"for $5, not $\frac{1"
    changed = [replace(record, arm=odd) if record.arm == "mixup" else record for record in records]
    assert "\\frac{1" in page(changed)
    assert report(changed, tmp_path / "page.html")


def test_names_from_users_are_escaped_in_markdown_too(records, tmp_path):
    evil = "a](x) `b` <script> *c*"
    changed = [replace(record, arm=evil) if record.arm == "mixup" else record for record in records]
    failed = replace(records[0], run="gone", status="failed", error="died\n# of `<script>`", metrics={})
    made = markdown_report([*changed, failed], tmp_path / "my page.md", title=evil)
    text = made[0].read_text()
    assert text.count("<script") == 1  # as code
    assert r"# a\](x) \`b\` &lt;script&gt; \*c\*" in text.splitlines()
    assert "- `gone`: `` died # of `<script>` ``" in text.splitlines()
    assert "](my%20page/accuracy-robustness.svg)" in text  # a space would end the address
    assert (tmp_path / "my page" / "accuracy-robustness.svg").is_file()


def test_the_files_of_a_report(records, tmp_path):
    written = report(records, tmp_path / "deep" / "page.html")
    assert written[0] == tmp_path / "deep" / "page.html"
    assert all(path.stat().st_size > 0 for path in written)
    names = {path.name for path in written}
    assert {"accuracy.md", "accuracy.tex", "accuracy-robustness.svg", "accuracy-time.png", "curves-test-top1.svg"} <= names
    with pytest.raises(ValueError, match=r"must end in \.html; got 'page\.pdf'"):
        report(records, tmp_path / "page.pdf")


def test_from_a_file_of_records(records, tmp_path):
    for record in records[:6]:
        append(tmp_path / "records.jsonl", record)
    assert page(read(tmp_path / "records.jsonl")) == page(records[:6])


def test_a_record_with_the_least_in_it():
    text = page([Record(run="r", arm="mine", data="d", model="m", seed=0, epochs=1, metrics={"last": 50.0})])
    assert "50.00" in text
    assert "1 seed" in text


def test_nothing_to_report():
    with pytest.raises(RecordError, match="no records are left"):
        page([])


def test_no_torch(tmp_path):
    """The package's own __init__ brings torch along; the report's modules do not ask for it."""
    import ast
    from pathlib import Path

    import mixsage.reports

    for path in Path(mixsage.reports.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.split(".")[0] in {"torch", "torchvision", "torchmetrics"} for name in names), path


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_it_without_complaint(records, tmp_path, width):
    path = tmp_path / "page.html"
    # A probe that the page itself may not run, so it sits in a page around it: sizes of what is shown, as the title.
    path.write_text(page(records), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --enable-logging=stderr --hide-scrollbars"
    log = tmp_path / "net.json"
    command = [
        CHROMIUM,
        *flags.split(),
        f"--user-data-dir={tmp_path / 'user'}",
        f"--window-size={width},3000",
        f"--log-net-log={log}",
    ]
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [*command, f"--screenshot={shot}", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line or "Refused" in line]
    assert complaints == []
    # The browser looks for its own updates at Google's whatever its flags say; the page's requests would go elsewhere.
    asked = [url for url in re.findall(r'"url":"(https?://[^"]+)"', log.read_text()) if "google" not in url]
    assert asked == []

    from PIL import Image

    pixels = Image.open(shot).convert("RGB")
    colours = {colour for _, colour in pixels.getcolors(maxcolors=2**24)}
    assert {(213, 94, 0), (0, 158, 115)} <= colours  # the figures' own colours: they are visible
