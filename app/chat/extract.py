"""The text of a file: plain text and Markdown as they are, HTML and PDF by libraries.

What a file is, its bytes tell; its name only lets HTML be text. It is read in a process of its own
(`apart`), so a library may be as slow, greedy or wrong as the file makes it. Whoever sent the file
looks at what came out before it becomes a document.
"""

import codecs
import io
import re
from collections.abc import Iterator

import msgspec
from pypdf import PdfReader
from selectolax.lexbor import LexborHTMLParser, LexborNode

from app.chat.files import LONGEST_TEXT, Extracted
from app.errors import InvalidRequest

MOST_PAGES = 2_000

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HTML = re.compile(rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.I | re.S)
_LEFT_OUT = {"head", "script", "style", "template", "noscript", "svg", "iframe", "nav"}
_BEFORE = {f"h{level}": f"\n\n{'#' * level} " for level in range(1, 7)}
_BEFORE |= dict.fromkeys(("p", "div", "ul", "ol", "table", "blockquote", "section"), "\n\n")
_BEFORE |= {"li": "\n- ", "tr": "\n", "td": "| ", "th": "| ", "br": "\n", "pre": "\n\n```\n"}
_BEHIND = dict.fromkeys((*(f"h{level}" for level in range(1, 7)), "p", "div", "ul", "ol"), "\n\n")
_BEHIND |= dict.fromkeys(("table", "blockquote", "section"), "\n\n") | {
    "pre": "\n```\n\n",
    "td": " ",
    "th": " ",
}
_GAP = re.compile(r"[ \t]*\n[ \t]*\n\s*\n")
_SPACE = re.compile(r"\s+")


def work(data: bytes, name: str) -> Iterator[bytes]:
    """For `apart`: one `Extracted`."""
    found = extracted(data, name)
    if not found.text.strip():
        raise InvalidRequest("There is no text in this file.", code="file_without_text")
    if len(found.text) > LONGEST_TEXT:
        raise _too_long()
    yield msgspec.json.encode(found)


def extracted(data: bytes, name: str) -> Extracted:
    """Raises `InvalidRequest`."""
    if b"%PDF-" in data[:1024]:
        return _of_pdf(data)
    if _HTML.match(data) or name.lower().endswith((".html", ".htm", ".xhtml")):
        return _of_html(data)
    return Extracted(title="", text=_of_text(data))


def _too_long() -> InvalidRequest:
    return InvalidRequest(
        f"The text has more than {LONGEST_TEXT:,} characters; a document has no room for it.",
        code="file_too_large",
    )


def _of_text(data: bytes) -> str:
    encoding = next((one for mark, one in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _unknown() from error
    if "\0" in text:
        raise _unknown()
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unknown() -> InvalidRequest:
    return InvalidRequest(
        "This is no PDF, no HTML and no text in UTF-8 or UTF-16.", code="file_unknown"
    )


# ---------------------------------------------------------------- PDF


def _of_pdf(data: bytes) -> Extracted:
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidRequest("This PDF needs a password.", code="file_encrypted")
        pages = len(reader.pages)
        if pages > MOST_PAGES:
            raise InvalidRequest(
                f"This PDF has {pages} pages; at most {MOST_PAGES} are read.", code="file_too_large"
            )
        texts: list[str] = []
        for page in reader.pages:
            texts.append(page.extract_text().strip())
            if sum(map(len, texts)) > LONGEST_TEXT:
                raise _too_long()
        title = str((reader.metadata and reader.metadata.title) or "")
    except InvalidRequest:
        raise
    except Exception as error:  # pypdf raises whatever a damaged file leads to
        raise InvalidRequest("This PDF is damaged.", code="file_damaged") from error
    text = "\n\n".join(filter(None, texts))
    if not text:
        raise InvalidRequest(
            "This PDF has no text: its pages are pictures, perhaps of a scanner.",
            code="file_without_text",
        )
    return Extracted(title=_one_line(title), text=_whole(text), pages=pages)


def _whole(text: str) -> str:
    """Without half characters, which broken fonts lead to, and without NULs."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")


# ---------------------------------------------------------------- HTML


def _of_html(data: bytes) -> Extracted:
    page = LexborHTMLParser(_decoded(data))
    title = page.css_first("title")
    root = page.css_first("main") or page.css_first("article") or page.body
    return Extracted(
        title="" if title is None else _one_line(title.text()),
        text="" if root is None else _said_by(root),
    )


def _decoded(data: bytes) -> str:
    """As its mark, its own `charset` or UTF-8 has it."""
    told = re.search(rb"<meta[^>]*charset\s*=\s*[\"']?([\w-]+)", data[:4096], re.I)
    marked = any(data.startswith(mark) for mark in _MARKS)
    if told is None or marked:
        return _of_text(data)
    try:
        return data.decode(told[1].decode(), "replace")
    except LookupError:
        return data.decode("utf-8", "replace")


def _said_by(root: LexborNode) -> str:
    """As Markdown, as far as headings, lists, tables and code go. Nesting may be of any depth."""
    parts: list[str] = []
    waiting: list[LexborNode | str] = [root]
    verbatim = 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            part = _BEHIND.get(node, "")
            verbatim -= node == "pre"
        elif node.tag == "-text":
            part = node.text_content or ""
            if not verbatim:
                at_start = not parts or parts[-1].endswith("\n")
                part = _SPACE.sub(" ", part)
                part = part.lstrip() if at_start else part
        elif node.tag is None or node.tag in _LEFT_OUT:
            continue
        else:
            part = _BEFORE.get(node.tag, "")
            verbatim += node.tag == "pre"
            waiting.append(node.tag)
            waiting += list(node.iter(include_text=True))[::-1]
        if part:
            parts.append(part)
    lines = (line.rstrip() for line in "".join(parts).split("\n"))
    return _GAP.sub("\n\n", "\n".join(lines)).strip("\n")


def _one_line(text: str) -> str:
    return _SPACE.sub(" ", _whole(text)).strip()[:200]
