"""Can a web page get at the service? Real pages on foreign origins try, in a headless Chromium.

Run: `uv run python tests/battery/clients/web_page.py [--chromium PATH]`. Pages of 20 origins send what browsers send
unasked: fetches, forms, beacons, images, scripts, frames, event streams, sockets; pages of 30 names that were rebound
to this machine ask the service as if it were their own server. Every request is seen to reach the service; it must
refuse each, tell nothing, and be after them as it was before. A page that the settings let in is seen to get through,
or the browser would be what refused the others. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.table import Table

from tests.battery.clients.hostile_site import HostileSite, hostile_site
from tests.bench.report import show
from tests.bench.served import Served, serve

__all__ = ["ATTEMPTS", "HOSTS", "ORIGINS"]

TIMEOUT_S = 60.0
_HERE = Path(__file__).parent
_GUIDE = _HERE.parents[2] / "assets" / "guide" / "guide-Q8_0.gguf"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * 127.0.0.1",
)

ORIGINS = (
    *("evil.example", "www.evil.example", "evil.test", "evil.internal", "evil.local", "router.home", "intranet"),
    *("localhost.evil.example", "127.0.0.1.nip.io", "xn--loclhost-uya", "evil.localhost", "localllm.localhost"),
    *("192.168.1.5", "10.0.0.1", "127.0.0.2", "127.0.0.1", "[::1]"),
    *("sandboxed", "data", "srcdoc"),  # frames whose origin is null
)
HOSTS = (
    *(f"rebound.{name}" for name in ORIGINS[:12]),
    *("192.168.1.6", "10.0.0.2", "127.0.0.4"),
    *("localhost.", "127.0.0.3", "169.254.1.1", "8.8.8.8", "[fe80::1]", "[::ffff:8.8.8.8]", "0x7f.example"),
    *("localhost-evil.example", "llama.localhost", "ollama", "host.docker.internal", "a.b.c.d.evil.example"),
    *("localhost.localdomain", "evil.example.localhost", "my-computer"),
)
ATTEMPTS: dict[str, Sequence[str]] = {
    "origin": (
        *("fetch", "fetch-opaque", "fetch-json", "fetch-text", "fetch-form", "fetch-parts", "request", "beacon"),
        *("beacon-form", "keepalive", "form-text", "form-coded", "form-parts", "form-get", "image", "script", "style"),
        *("frame", "events", "socket"),
    ),
    "host": ("fetch", "fetch-json", "fetch-text", "load", "frame", "events", "request"),
    "friend": ("fetch-text",),
}


def page_of(query: dict[str, str]) -> str:
    """Return the page that tries what `query` says, with all that it has to know in it."""
    script = (_HERE / "web_page.js").read_text(encoding="utf-8")
    return f"<!doctype html><meta charset=utf-8><body><script>const query = {json.dumps(query)};\n{script}</script>"


def report_of(site: HostileSite) -> str:
    """Return where pages report: a name of its own, for connections to the others may be the service's by then."""
    return f"http://report.example:{site.port}/report"


def frames(site: HostileSite) -> list[dict[str, str]]:
    """Return what each page is told: the kind of its attempts, its name, whom it attacks, where it reports."""
    us, report = f"http://localhost:{site.port}", report_of(site)
    told = [{"kind": "origin", "name": name, "target": us} for name in ORIGINS]
    told += [{"kind": "host", "name": name, "target": ""} for name in HOSTS]
    return [{**item, "report": report, "attempts": ",".join(ATTEMPTS[item["kind"]])} for item in told]


def top_of(site: HostileSite, told: Sequence[dict[str, str]]) -> str:
    """Return the address of the page that opens the others, each in a frame."""
    addresses = {
        f"{item['kind']}:{item['name']}": f"http://{_host(item['name'])}:{site.port}/page?{urlencode(item)}"
        for item in told
    }
    asked = {"kind": "top", "frames": json.dumps(addresses)}
    return f"http://top.example:{site.port}/page?{urlencode(asked)}"


def _host(name: str) -> str:
    return "top.example" if name in {"sandboxed", "data", "srcdoc"} else name


@asynccontextmanager
async def browser(command: str, address: str) -> AsyncIterator[None]:
    """Have a browser with a profile of its own open `address`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = (*_FLAGS, f"--user-data-dir={profile}")
        silent = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(command, *flags, address, **silent)
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


async def attack(command: str, site: HostileSite, told: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Have every page of `told` opened; return what each reports to have read, of those that report in time."""
    reports: list[dict[str, Any]] = []
    async with browser(command, top_of(site, told)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while len(reports) < len(told):
                    reports.append(await site.reports.get())
    return reports


def state_of(served: Served) -> dict[str, Any]:
    """Return what a request could have changed."""
    model = served.model()
    return {name: model[name] for name in ("id", "state", "n_running", "worker_pid", "counters", "occupancy")}


def findings(
    site: HostileSite, told: Sequence[dict[str, str]], reports: Sequence[dict[str, Any]]
) -> list[tuple[str, str, bool]]:
    """Return (what was looked at, what was seen, whether it may be so) of the hostile pages."""
    wanted = {f"{item['kind']}:{item['name']}:{attempt}" for item in told for attempt in ATTEMPTS[item["kind"]]}
    ours = [exchange for exchange in site.exchanges if exchange.case in wanted]
    arrived, refused = {item.case for item in ours}, [item for item in ours if item.status in (400, 403)]
    n_allowing = sum(item.allows_pages for item in ours)
    read = {text for report in reports for text in report["told"].values() if text}
    telling = [text for text in read if "not_allowed" not in text]
    missing = sorted(wanted - arrived)
    silent = sorted({f"{item['kind']}:{item['name']}" for item in told} - {report["page"] for report in reports})
    origins = {report["origin"] for report in reports if report["page"].startswith("origin:")}
    return [
        ("pages that reported", f"{len(reports)} of {len(told)} {silent[:8]}", not silent),
        ("origins that tried", str(len(origins)), len(origins) >= len(ORIGINS) - 2),  # three of them are "null"
        ("attempts that reached the service", f"{len(arrived)} of {len(wanted)} {missing[:8]}", not missing),
        ("requests refused", f"{len(refused)} of {len(ours)}", len(refused) == len(ours)),
        ("replies that let a page read", str(n_allowing), n_allowing == 0),
        ("texts that pages read", f"{len(read)}, of which no refusal: {telling[:3]}", not telling),
    ]


async def examine(command: str) -> list[tuple[str, str, bool]]:
    async with hostile_site(page_of) as site:
        friend = f"http://friend.example:{site.port}"
        with serve(_GUIDE, 0, engine="fake", origins=friend) as served:
            site.target_port = served.port
            before, told = state_of(served), frames(site)
            found = findings(site, told, await attack(command, site, told))
            found.append(("the service is as it was", "", state_of(served) == before))
            site.exchanges.clear()
            us = f"http://localhost:{site.port}"
            allowed = {"kind": "friend", "name": "friend.example", "target": us, "attempts": "fetch-text"}
            await attack(command, site, [{**allowed, "report": report_of(site)}])
            statuses = [exchange.status for exchange in site.exchanges if exchange.case.startswith("friend:")]
            found.append(("a page that is let in", str(statuses), statuses == [200] and state_of(served) != before))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    if options.chromium is None:
        sys.exit("There is no Chromium here. Install one, or name it with --chromium.")
    found = asyncio.run(examine(options.chromium))
    made = Table("what", "seen", "", box=None, pad_edge=False)
    for what, seen, is_right in found:
        made.add_row(what, seen, "" if is_right else "WRONG")
    show(made)
    sys.exit(not all(is_right for _, _, is_right in found))


if __name__ == "__main__":
    main()
