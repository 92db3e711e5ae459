"""For the documentation: examples in docstrings, which are doctests, become blocks of code. Markdown would read `>>>` as a quotation."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences every doctest, down to the empty line after it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for everything that has been read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its doctests in fences.

    >>> print(fenced(">>> 1 + 1" + chr(10) + "2").replace("`", "'"))
    '''python
    >>> 1 + 1
    2
    '''
    """
    lines: list[str] = []
    indent: str | None = None
    for line in text.splitlines():
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            # Without the empty line a paragraph above would take the fence for its own.
            lines += [""] if lines and lines[-1].strip() and not lines[-1].rstrip().endswith(":") else []
            lines.append(f"{indent}```python")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines if indent is None else [*lines, f"{indent}```"])
