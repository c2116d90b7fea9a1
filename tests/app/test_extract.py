"""What files say, and what happens to those that nobody should have to read."""

import asyncio
import io
import random
import subprocess
import sys
import zlib

import httpx
import pytest
from pypdf import PdfWriter

from app.chat import apart as apart_module
from app.chat.apart import Apart
from app.chat.extract import extracted, work
from app.chat.files import LONGEST_TEXT, Extraction
from app.errors import InvalidRequest, TooMany
from app.routes.files import LARGEST_FILE
from tests.kit.serving import Serving
from tests.kit.staff import somebody

PAGE = b"""<!-- saved --><!DOCTYPE html><html><head><title>The
 sea</title><script>var x = "<p>hidden</p>"</script></head>
<body><nav>Home</nav><h1>The &amp; sea</h1><p>It is <b>wide</b>
and   deep.<br>Very.</p>tail<ul><li>one<li>two</ul>
<pre>a
  b</pre><table><tr><td>1<td>2</table></body></html>"""


def pdf(*pages: str, more: bytes = b"") -> bytes:
    """A PDF of these lines, with a stream more behind the first page's text."""
    numbers = [4 + 2 * place for place in range(len(pages))]
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    for number, text in zip(numbers, pages, strict=True):
        stream = zlib.compress(f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode() + more)
        objects[number] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (number + 1)
        )
        objects[number + 1] = (
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(stream)
            + stream
            + b"\nendstream"
        )
    file = bytearray(b"%PDF-1.4\n")
    places = {}
    for number in sorted(objects):
        places[number] = len(file)
        file += b"%d 0 obj\n" % number + objects[number] + b"\nendobj\n"
    table = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % places[number] for number in sorted(places))
    file += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        table,
    )
    return bytes(file)


def locked(file: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=io.BytesIO(file))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_a_pdf_says_what_its_pages_say():
    found = extracted(pdf("The first page.", "The second."), "x.pdf")

    assert (found.text, found.pages) == ("The first page.\n\nThe second.", 2)
    assert extracted(locked(pdf("Open."), ""), "").text == "Open."


def test_a_page_of_the_web_says_what_a_reader_sees():
    found = extracted(PAGE, "")

    assert found.title == "The sea"
    assert found.text == (
        "# The & sea\n\nIt is wide and deep.\nVery.\n\ntail\n\n- one\n- two\n\n"
        "```\na\n  b\n```\n\n| 1 | 2"
    )


def test_deep_and_odd_pages_of_the_web_are_read():
    deep = b"<html><body>" + b"<div>" * 20_000 + b"down here"
    latin = b"<html><meta charset='iso-8859-1'><body>caf\xe9"
    unknown = b"<html><meta charset='no-such'><body>caf\xc3\xa9"

    assert "down here" in extracted(deep, "").text
    assert extracted(latin, "").text == extracted(unknown, "").text == "café"
    assert extracted(b"<p>a fragment", "x.HTM").text == "a fragment"
    assert extracted(b"<p>a fragment", "x.md").text == "<p>a fragment"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_come_as_they_are(encoding: str):
    found = extracted("# Grüße\r\n\r\n今日は".encode(encoding), "notes.md")

    assert found.text == "# Grüße\n\n今日は"


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (b"", "file_without_text"),
        (b" \n", "file_without_text"),
        (b"\x89PNG\r\n\x1a\n\0\0", "file_unknown"),
        (b"text with a \0", "file_unknown"),
        (b"x" * (LONGEST_TEXT + 1), "file_too_large"),
        (b"%PDF-1.7 and no more", "file_damaged"),
        (pdf("Cut off.")[:-200], "file_damaged"),
        (pdf(""), "file_without_text"),
        (locked(pdf("Secret."), "word"), "file_encrypted"),
        (b"<html><script>only()</script>", "file_without_text"),
    ],
    ids=range(10),
)
def test_what_cannot_be_read_is_refused_by_name(file: bytes, code: str):
    with pytest.raises(InvalidRequest) as refused:
        list(work(file, ""))

    assert refused.value.code == code


def test_any_damage_to_a_pdf_is_refused_or_read_never_worse():
    whole, dice = pdf("The first page.", "The second."), random.Random(3)  # noqa: S311
    for _ in range(300):
        file = bytearray(whole)
        for _ in range(dice.randrange(1, 20)):
            file[dice.randrange(8, len(file))] = dice.randrange(256)
        try:
            assert list(work(bytes(file), ""))
        except InvalidRequest as refused:
            assert refused.code.startswith("file_")


@pytest.mark.parametrize("named", apart_module.WORKS.values())
def test_what_reads_strangers_files_loads_no_more_than_it_needs(named: str):
    """One process a file: what it imports is paid for each, and is there for a file to harm."""
    module, _, _ = named.partition(":")
    code = f"import sys, {module}; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert not {"sqlalchemy", "advanced_alchemy", "litestar", "torch"} & {*loaded.stdout.split()}


async def test_a_file_that_unpacks_without_end_harms_nobody():
    bomb = pdf("Boom", more=b" " * (1 << 29))

    with pytest.raises(InvalidRequest, match=r"more time or memory|damaged"):
        await Extraction(Apart()).text(bomb, "bomb.pdf")


async def test_what_takes_too_long_is_stopped_and_those_who_wait_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
):
    hasty = Extraction(Apart(patience_s=0.01))
    with pytest.raises(InvalidRequest) as refused:
        await hasty.text(b"never read", "")
    assert refused.value.code == "file_too_complex"

    monkeypatch.setattr(apart_module, "WAITING", 0)
    extraction = Extraction(Apart())
    results = await asyncio.gather(
        *(extraction.text(b"words", "") for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(one, TooMany) for one in results) == 1
    assert (await extraction.text(b"again", "")).text == "again"


@pytest.mark.row("dangerous extras", "also untrusted")
async def test_the_page_reads_a_file_and_keeps_it_as_a_document(house: Serving):
    async with somebody(house) as ann:

        async def read(file: bytes, name: str = "") -> httpx.Response:
            path = "/api/files/text"
            return await ann.client.post(path, content=file, params={"name": name})

        found = (await read(pdf("The ship has two masts."), "ship.pdf")).json()
        document = await ann.client.post(
            "/api/documents", json={"title": "Ship", "text": found["text"]}
        )
        refused = await read(b"\x89PNG\0")
        large = await read(b" " * (LARGEST_FILE + 1))

    assert document.json()["text"] == "The ship has two masts."
    assert found["pages"] == 1
    assert (refused.status_code, refused.json()["code"]) == (400, "file_unknown")
    assert large.status_code == 413
