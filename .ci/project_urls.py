"""Addresses in the metadata of a release: those of the repository that builds it, which GitHub puts in the environment.
Those of a fork are the fork's; other builds have none."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        if not server or not repository:
            return
        home = f"{server}/{repository}"
        metadata["urls"] = {
            "Homepage": home,
            "Documentation": f"{home}/blob/main/assets/docs/install.md",
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Issues": f"{home}/issues",
            "Releases": f"{home}/releases",
        }
