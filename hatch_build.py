"""What a package index shows of the README, where no file of the repository is beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?<!\w)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")
_PICTURE = re.compile(r"<picture>.*?</picture>\n+", re.DOTALL)
_SOURCE = re.compile(r'\b(src|srcset)="(?![a-z]+:)([^"]+)"')


class Readme(MetadataHookInterface):
    """Makes the metadata's readme when a wheel or an sdist is built, and when nbcomm is installed from a checkout."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the readme into the project's metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": standing_alone(text, repository)}


def standing_alone(text: str, repository: str | None) -> str:
    """Let links and pictures that are relative lead into the repository; without one, only their words are left.

    Args:
        text: Markdown.
        repository: the address of a repository on GitHub, `Repository` in pyproject.toml's `project.urls`.
    """
    if repository is None:
        return _LINK.sub(r"\1", _PICTURE.sub("", text))
    text = _LINK.sub(lambda link: f"[{link[1]}]({repository}/blob/HEAD/{link[2]})", text)
    return _SOURCE.sub(lambda source: f'{source[1]}="{repository}/raw/HEAD/{source[2]}"', text)
