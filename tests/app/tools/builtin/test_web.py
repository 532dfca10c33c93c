"""Reading addresses of the public web for a model."""

from __future__ import annotations

from typing import Any

import pytest

from app.common.public_web import FetchLimits, PublicWeb
from app.tools.builtin.web import FETCH_URL, WebServer
from app.tools.tool import CallContext, ToolOutput
from quantizer.system.errors import UserError
from tests.app.service.generation.test_media_fetching import _answer, resolving_to, web

PAGE = b"<html><head><title>Soup</title><script>evil()</script></head><body><h1>Soup</h1><p>Hot <b>soup</b></p></body>"
CONTEXT = CallContext()


async def fetch(url: str, arguments: dict[str, Any] | None = None, **limits: Any) -> ToolOutput:
    everywhere = PublicWeb(FetchLimits(**limits), "Ask.", resolving_to("127.0.0.1"), lambda _: True)
    return await WebServer(everywhere).call(FETCH_URL, {"url": url, **(arguments or {})}, CONTEXT)


NEWS = (
    "<html><head><title>Leeks rise</title></head><body><nav><a href=/>Home</a> <a href=/sport>Sport</a></nav>"
    "<div class=cookie>We value your privacy. <button>Accept all</button></div>"
    "<div class=content><h1>Leeks rise</h1>"
    + "".join(
        f"<p>Paragraph {n} says in many words that leeks cost more than they did a year ago, and why.</p>"
        for n in range(9)
    )
    + "</div><aside><h2>Most read</h2><ul><li><a href=/a>A cat</a></li><li><a href=/b>A dog</a></li></ul></aside>"
    "<footer>© Example. Terms of use. Contact.</footer></body></html>"
).encode()
MANUAL = (
    "<html><head><title>soup — boil it</title></head><body><nav>Index | Modules</nav><main>"
    "<h1>soup</h1><p>Boils soup.</p><dl><dt>soup.boil(minutes, *, lid=True)</dt><dd>Boil it so long.</dd></dl>"
    "<pre>import soup\nsoup.boil(\n    5,\n)\n</pre></main><footer>Created with a generator.</footer></body></html>"
).encode()
HTML = "content-type: text/html; charset=utf-8"


@pytest.mark.slow
async def test_of_a_page_its_article_is_read_and_all_of_it_where_that_is_asked() -> None:
    async with web(_answer(NEWS, HTML)) as port:
        output = await fetch(f"http://a.example:{port}/")
        whole = await fetch(f"http://a.example:{port}/", arguments={"whole": True})
    assert output.text.startswith("# Leeks rise\n\n")
    assert all(f"Paragraph {number} says" in output.text for number in range(9))
    assert not any(words in output.text for words in ("Sport", "privacy", "Most read", "A cat", "Terms of use"))
    assert all(words in whole.text for words in ("Paragraph 3 says", "Sport", "privacy", "A cat", "Terms of use"))
    (source,) = output.sources
    assert source.label == f"http://a.example:{port}/ (Leeks rise)"


@pytest.mark.slow
async def test_documentation_keeps_its_definitions_and_the_lines_of_its_code() -> None:
    async with web(_answer(MANUAL, HTML)) as port:
        text = (await fetch(f"http://a.example:{port}/")).text
    assert "soup.boil(minutes, *, lid=True)" in text
    assert "import soup\nsoup.boil(\n    5,\n)" in text
    assert "Created with" not in text
    assert "Index" not in text


@pytest.mark.slow
async def test_a_page_becomes_markdown() -> None:
    async with web(_answer(PAGE, "content-type: text/html; charset=utf-8")) as port:
        output = await fetch(f"http://a.example:{port}/")
    assert output.text == "# Soup\n\nHot **soup**"
    assert output.detail == f"{len(PAGE)} bytes"


async def test_a_text_is_read_in_its_encoding() -> None:
    async with web(_answer(b"caf\xe9", "content-type: text/plain; charset=latin-1")) as port:
        assert (await fetch(f"http://a.example:{port}/")).text == "café"
    async with web(_answer(b'{"a": 1}', "content-type: application/problem+json; charset=nonsense")) as port:
        assert (await fetch(f"http://a.example:{port}/")).text == '{"a": 1}'


@pytest.mark.parametrize("headers", [("content-type: image/png",), ("content-type: text/plain",), ()])
async def test_what_is_no_text_is_said_and_not_dumped(headers: tuple[str, ...]) -> None:
    async with web(_answer(b"\x89PNG\0\0", *headers)) as port:
        with pytest.raises(UserError, match="is not text: it has 6 bytes"):
            await fetch(f"http://a.example:{port}/")


async def test_too_large_a_file_is_refused() -> None:
    async with web(_answer(b"x" * (2 << 20), "content-type: text/plain")) as port:
        with pytest.raises(UserError, match="more than 1 MiB"):
            await fetch(f"http://a.example:{port}/", max_bytes=1 << 20)


async def test_where_a_redirect_led_is_said() -> None:
    async with web(_answer(b"there", "content-type: text/plain")) as there:
        place = f"http://b.example:{there}/x"
        async with web(_answer(b"", f"location: {place}", status="302 Found")) as port:
            assert (await fetch(f"http://a.example:{port}/")).text == f"[at {place}]\nthere"


@pytest.mark.parametrize(
    "place", ["http://bank.example@b.example:{}/", "//b.example:{}/\u202efdp.exe", "//b.example:{}/" + "x" * 2000]
)
async def test_no_redirect_makes_a_source_that_hides_whose_it_is(place: str) -> None:
    async with (
        web(_answer(b"there", "content-type: text/plain")) as there,
        web(_answer(b"", f"location: {place.format(there)}", status="302 Found")) as port,
    ):
        with pytest.raises(UserError, match="hides whose it is"):
            await fetch(f"http://a.example:{port}/")


async def test_this_machine_is_never_asked() -> None:
    async with web(_answer(b"secret", "content-type: text/plain")) as port:
        for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433"):
            with pytest.raises(UserError):
                await WebServer().call(FETCH_URL, {"url": f"http://{host}:{port}/"}, CONTEXT)


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://a.example/", "javascript:1", "a.example", "http://", "", "http://[::1/"),
        *("http://user:pw@a.example/", "https://bank.example@evil.example/", "http://a.example/\x1b[2J", "http://a b/"),
    ],
)
async def test_addresses_that_are_none_or_hide_their_host_are_refused_before_anybody_is_asked(url: str) -> None:
    with pytest.raises(UserError) as refused:
        await WebServer().preview(FETCH_URL, {"url": url}, CONTEXT)
    assert ("has a user name" in str(refused.value)) is ("@" in url)
    assert "\x1b" not in str(refused.value)


async def test_the_preview_shows_the_whole_address_and_the_host() -> None:
    url = "https://a.example/?q=" + "x" * 500
    preview = await WebServer().preview(FETCH_URL, {"url": url}, CONTEXT)
    assert url in preview.text
    assert preview.text.endswith("[asks a.example]")
    assert len(preview.title) < 220
