"""Transformers' own `generate` with caches kept by hand, behind the dialect: what a careful script does.

    python -m benchmarks.handkept FOLDER --port 8003 --kv-tokens 65536

The system prompt is computed once and copied into each new conversation; a turn crops its
conversation's cache to what the new prompt repeats, and feeds the rest. One request at a time, first
come, first served: `generate` cannot mix requests of different lengths. Where the tokens kept are too
many, the conversation that was used longest ago goes.
"""

import argparse
import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import torch
import uvicorn
from litestar import Litestar, Request, post
from litestar.datastructures import State
from litestar.response import Stream
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

Say = Callable[[str], None]
Message = dict[str, str]


class Asked(msgspec.Struct, kw_only=True):
    messages: list[Message]
    max_tokens: int
    user: str = ""


class Kept:
    """One conversation's cache, and the ids that it holds."""

    def __init__(self, cache: Any, ids: list[int]) -> None:
        self.cache = cache
        self.ids = ids


class Speaker:
    """A streamer: says each token's text as it comes."""

    def __init__(self, tokenizer: Any, say: Say) -> None:
        self._tokenizer = tokenizer
        self._say = say
        self._ids: list[int] | None = None
        self._said = ""

    def put(self, value: torch.Tensor) -> None:
        if self._ids is None:
            self._ids = []  # `generate` puts the prompt first
            return
        self._ids += value.reshape(-1).tolist()
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if not text.endswith("\ufffd"):
            self._say(text[len(self._said) :])
            self._said = text

    def end(self) -> None:
        """Nothing is held back but half a character."""


class HandKept:
    def __init__(self, folder: str, kv_tokens: int) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model.eval()
        self._kv_tokens = kv_tokens
        self._systems: dict[str, Kept] = {}
        self._chats: dict[str, Kept] = {}
        self.lock = asyncio.Lock()

    @torch.inference_mode()
    def reply(self, asked: Asked, say: Say) -> dict[str, object]:
        """Say the reply; return the usage."""
        ids = self._ids(asked.messages)
        kept, computed = self._find(asked)
        common = _common(kept.ids, ids[:-1])
        if common < len(kept.ids):
            kept.cache.crop(common - len(kept.ids))
        prompt = torch.tensor([ids])
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            cache=kept.cache,
            max_new_tokens=asked.max_tokens,
            min_new_tokens=asked.max_tokens,
            do_sample=False,
            streamer=Speaker(self._tokenizer, say),
        )
        # The last token was drawn and not fed.
        kept.ids = output[0, :-1].tolist()
        self._keep(asked.user, kept)
        return {
            "prompt_tokens": len(ids),
            "completion_tokens": len(kept.ids) + 1 - len(ids),
            "prompt_tokens_details": {"cached_tokens": max(0, common - computed)},
        }

    def _ids(self, messages: Sequence[Message], *, opens: bool = True) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opens
        )
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _find(self, asked: Asked) -> tuple[Kept, int]:
        """What this conversation goes on from, and how much of it is computed right now."""
        if asked.user in self._chats:
            return self._chats.pop(asked.user), 0
        computed = 0
        system = asked.messages[0]
        if system["role"] != "system":
            return Kept(DynamicCache(config=self._model.config), []), 0
        name = system["content"]
        if name not in self._systems:
            ids = self._ids([system], opens=False)
            self._systems = {name: Kept(DynamicCache(config=self._model.config), ids)}
            self._model(torch.tensor([ids]), cache=self._systems[name].cache, logits_to_keep=1)
            computed = len(ids)
        return copy.deepcopy(self._systems[name]), computed

    def _keep(self, user: str, kept: Kept) -> None:
        """Used just now, so it is the last to go."""
        if user:
            self._chats[user] = kept
        while sum(len(one.ids) for one in self._chats.values()) > self._kv_tokens:
            del self._chats[next(iter(self._chats))]


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    pairs = zip(some, others, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(some), len(others)))


# ---------------------------------------------------------------- the dialect


@post("/v1/chat/completions", status_code=200)
async def complete(request: Request[Any, Any, State], state: State) -> Stream:
    asked = msgspec.json.decode(await request.body(), type=Asked)
    return Stream(_pieces(state.hand, asked), media_type="text/event-stream")


async def _pieces(hand: HandKept, asked: Asked) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    said: asyncio.Queue[str | None] = asyncio.Queue()

    def say(text: str) -> None:
        loop.call_soon_threadsafe(said.put_nowait, text)

    def work() -> dict[str, object]:
        try:
            return hand.reply(asked, say)
        finally:
            loop.call_soon_threadsafe(said.put_nowait, None)

    async with hand.lock:
        reply = loop.run_in_executor(None, work)
        while (text := await said.get()) is not None:
            yield _data({"choices": [{"delta": {"content": text}}]})
        yield _data({"choices": [], "usage": await reply})
    yield b"data: [DONE]\n\n"


def _data(content: object) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kv-tokens", type=int, default=1 << 16)
    options = parser.parse_args()
    hand = HandKept(options.folder, options.kv_tokens)
    app = Litestar([complete], state=State({"hand": hand}), openapi_config=None)
    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
