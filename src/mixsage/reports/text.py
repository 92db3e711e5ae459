"""Tables as Markdown and as LaTeX. Names come from users, so whatever has a meaning there is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable

from mixsage.reports.tables import Cell, Table


def to_markdown(table: Table) -> str:
    """A Markdown table under a heading, with its notes."""
    escape = escape_markdown
    lines = ["| " + " | ".join(["", *map(escape, table.columns)]) + " |", "|" + "---|" * (len(table.columns) + 1)]
    for label, cells in table.rows:
        lines.append("| " + " | ".join([escape(label), *(_markdown_cell(cell, escape) for cell in cells)]) + " |")
    notes = [f"{escape(note)}  " for note in table.notes]
    return "\n".join([f"### {escape(table.heading)}", "", *lines, "", *notes]).rstrip() + "\n"


def to_latex(table: Table) -> str:
    """A LaTeX table (booktabs), with its notes as comments."""
    special = {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "–": "--",
        "×": r"$\times$",
        "−": "$-$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        # LaTeX's old default fonts have other signs in the places of these.
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # At the start of a row, the end of the row before would take these for its own arguments.
        "[": "{[}",
        "]": "{]}",
        "*": "{*}",
    }
    escape = _escaper({**special, **{sign: "\\" + sign for sign in "&%$#_{}"}, "\n": " "})
    lines = [
        *("% " + " ".join(note.splitlines()) for note in table.notes),
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(table.heading)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["", *map(escape, table.columns)]) + r" \\",
        r"\midrule",
    ]
    for label, cells in table.rows:
        lines.append(" & ".join([escape(label), *(_latex_cell(cell, escape) for cell in cells)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def escape_markdown(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    return _MARKDOWN(text)


def _markdown_cell(cell: Cell, escape: Callable[[str], str]) -> str:
    text = f"**{escape(cell.text)}**" if cell.strong else escape(cell.text)
    note = f" ({escape(cell.note)})" if cell.note else ""
    theirs = f" [{escape(cell.published)}]" if cell.published else ""
    return text + note + theirs


def _latex_cell(cell: Cell, escape: Callable[[str], str]) -> str:
    text = rf"\textbf{{{escape(cell.text)}}}" if cell.strong else escape(cell.text)
    note = f" ({escape(cell.note)})" if cell.note else ""
    theirs = rf" {{\footnotesize [{escape(cell.published)}]}}" if cell.published else ""
    return text + note + theirs


def _escaper(table: dict[str, str]) -> Callable[[str], str]:
    pattern = re.compile("|".join(map(re.escape, table)))
    return lambda text: pattern.sub(lambda match: table[match[0]], text)


_MARKDOWN = _escaper(
    {sign: "\\" + sign for sign in "\\|*_`[]"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "\r\n": " ", "\n": " ", "\r": " "}
)
