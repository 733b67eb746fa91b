"""Where the pages of a comparison go: each file is whole or absent, and is looked at before anything is simulated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simkv.comparison.page import html_page, markdown
from simkv.errors import Problem
from simkv.outputs import file_problem, folder_problem, write_file, write_folder

__all__ = ["Pages"]


@dataclass(frozen=True)
class Pages:
    """Files that somebody asked for.

    Parameters
    ----------
    html, md : Path or None
    figures : Path or None
        Directory of the overlay figures.
    """

    html: Path | None = None
    md: Path | None = None
    figures: Path | None = None

    def problems(self, *, force: bool) -> list[Problem]:
        """Why they cannot be written."""
        found = [
            None if self.html is None else file_problem(self.html, "--html", force=force),
            None if self.md is None else file_problem(self.md, "--md", force=force),
            None if self.figures is None else folder_problem(self.figures, "--figures", force=force, ours="*.png"),
        ]
        named = [path.absolute() for path in (self.html, self.md, self.figures) if path is not None]
        if len(set(named)) < len(named):
            found.append(Problem("--html, --md, --figures", "name the same place"))
        return [one for one in found if one is not None]

    def write(self, comparison: Any) -> list[str]:
        """Write what was asked for of one comparison, of sweeps too; the names of what was written.

        Raises
        ------
        ScenarioError
            Something cannot be written.
        """
        return self._write(comparison.to_html, comparison.to_markdown, {"": comparison})

    def write_several(self, title: str, lead: Sequence[str], comparisons: Mapping[str, Any]) -> list[str]:
        """Write what was asked for of several comparisons, each under its name.

        Parameters
        ----------
        title : str
            Of the page.
        lead : sequence of str
            Sentences above the first.
        comparisons : mapping
            Name to Comparison.

        Raises
        ------
        ScenarioError
            Something cannot be written.
        """

        def text() -> str:
            parts = [f"# {title}\n", *(f"{line}\n" for line in lead)]
            return "\n".join([*parts, *(markdown(one, name) for name, one in comparisons.items())])

        return self._write(lambda: html_page(title, comparisons, lead=lead), text, comparisons)

    def _write(self, html: Callable[[], str], text: Callable[[], str], comparisons: Mapping[str, Any]) -> list[str]:
        # Everything is made before anything is written.
        made = [(path, make()) for path, make in ((self.html, html), (self.md, text)) if path is not None]
        files: dict[str, bytes] = {}
        if self.figures is not None:
            files = {
                f"{_file_name(f'{name}-{kind}' if name else kind)}.png": data
                for name, one in comparisons.items()
                for kind, data in one.pictures.items()
            }
        for path, content in made:
            write_file(path, content)
        written = [str(path) for path, _ in made]
        if self.figures is not None:
            write_folder(self.figures, files)
            written.append(f"{self.figures}/*.png ({len(files)} figures)")
        return written


def _file_name(text: str) -> str:
    """A name without separators."""
    return re.sub(r"[^\w.=-]+", "-", text).strip(".-") or "figure"
