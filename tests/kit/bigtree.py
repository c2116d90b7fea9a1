"""A prefix tree of thousands of nodes, and how long the page takes to lay it out and draw it.

`python -m tests.kit.bigtree` prints the time. The tree is made up; the page and Chromium are real.
"""

import msgspec
from playwright.sync_api import Page, sync_playwright

from app.chat.prefixes import PrefixRow, PrefixTree
from engine.terms import Tier
from tests.kit.chromium import launched
from tests.kit.pictures import WIDE, opened
from tests.kit.server import start_server

DOCUMENTS = 20
COUNTS = (5_000, 20_000)
REDRAWN_MS = """async () => {
  const canvas = document.querySelector("canvas").getContext("2d");
  const times = [];
  for (let round = 0; round < 15; round++) {
    [...document.querySelectorAll(".into")].at(-1).click();
    await new Promise(requestAnimationFrame);
    const before = performance.now();
    document.querySelector(".path button").click();
    await null;
    canvas.getImageData(0, 0, 1, 1);
    times.push(performance.now() - before);
  }
  return times.sort((a, b) => a - b)[7];
}"""
"""From a branch back to the whole tree: laid out, drawn and painted; the median."""


def big_tree(count: int) -> PrefixTree:
    """As the server tells it: a persona, documents behind it, conversations of two turns behind these."""
    chats = (count - DOCUMENTS) // 2

    def parent(node_id: int) -> int | None:
        if node_id <= DOCUMENTS:
            return 0 if node_id else None
        later = node_id > DOCUMENTS + chats
        return node_id - chats if later else 1 + node_id % DOCUMENTS

    nodes = tuple(
        PrefixRow(
            node_id=node_id,
            parent_id=parent(node_id),
            kind=None,
            subject_id=None,
            owner_id=None,
            tier=Tier.DEVICE,
            scope="operator",
            tokens=40,
            blocks=3,
            bytes=160,
            all_tokens=40 * (count - node_id),
            in_use=False,
            retention="recent",
            hits=1,
            paths=1,
            idle_s=1.0,
        )
        for node_id in range(count)
    )
    return PrefixTree(nodes=nodes, left_out=0)


def show(page: Page, tree: PrefixTree) -> None:
    """In the administrators' page: the tree is on it when this returns."""
    body = msgspec.json.encode(tree)
    answer = {"body": body, "content_type": "application/json"}
    page.route("**/api/admin/prefixes?*", lambda route: route.fulfill(**answer))
    page.get_by_role("link", name="Prefix tree").click()
    page.get_by_text(f"{len(tree.nodes)} parts.").wait_for()


def main() -> None:
    with start_server() as server, sync_playwright() as playwright:
        browser = launched(playwright)
        for count in COUNTS:
            with opened(browser, server, WIDE, "light") as page:
                page.goto(f"{server.url}/admin")
                show(page, big_tree(count))
                print(f"{count:,} nodes: {page.evaluate(REDRAWN_MS):.1f} ms")  # noqa: T201
        browser.close()


if __name__ == "__main__":
    main()
