"""READMEs are true: what they name exists, and each module is named in the nearest one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "offload", "quantizer", "tui")
FOLDERS = (*PACKAGES, "assets", "tests")
READMES = sorted(
    [
        ROOT / "README.md",
        ROOT / ".github" / "SECURITY.md",
        *(path for name in FOLDERS for path in (ROOT / name).rglob("README.md")),
    ]
)
MODULES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if path.name != "__init__.py")


def _anchors(readme: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", readme.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken(readme: Path) -> Iterator[str]:
    """Yield each link and each path from the root that leads nowhere."""
    text = readme.read_text(encoding="utf-8")
    for path, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if path.startswith(("http:", "https:")):
            continue
        target = readme.parent / path if path else readme
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            yield f"{path}#{anchor}"
    for name in re.findall(r"`((?:app|assets|offload|quantizer|tests|tui)/[\w/.-]+)`", text):
        if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists():
            yield name


def _nearest_readme(module: Path) -> Path:
    return next(parent / "README.md" for parent in module.parents if (parent / "README.md").exists())


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_paths_of_a_readme_lead_somewhere(readme: Path) -> None:
    assert list(_broken(readme)) == []


def test_every_module_is_named_in_the_nearest_readme() -> None:
    texts = {readme: readme.read_text(encoding="utf-8") for readme in map(_nearest_readme, MODULES)}
    unnamed = [
        module.relative_to(ROOT).as_posix()
        for module in MODULES
        if not re.search(rf"\b{module.stem}\b", texts[_nearest_readme(module)])
    ]
    assert unnamed == []


def test_every_folder_of_the_code_is_in_the_tree_of_the_first_readme() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    named = {line.split()[0].rstrip("/") for line in lines if re.match(r"(?:  )?\w+/", line)}
    packages = {init.parent.name for init in ROOT.glob("app/*/__init__.py")}
    assert {*PACKAGES, *packages} - named == set()
