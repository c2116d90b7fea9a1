"""Conversations with titles, as hypothesis draws them: lived at a desk, with the titles or without.

Turns come one at a time. A title is asked for at any step of any turn, or while all rest; some are
stopped, some are still running when the next turn comes, and some ask about an older history.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from engine.api import Job, JobClass
from engine.errors import PromptTooLong
from tests.kit.desk import ANN, BEN, Desk, Turn

OWNERS = (ANN, ANN, BEN)
"""Whose the conversations are."""

SILENCE_S = 1000.0
"""After it every conversation is idle."""


class Asked(NamedTuple):
    """A title of a conversation, wanted at a step of a round and stopped so many steps later."""

    chat: int
    at: int
    question: int
    output: int
    stopped: int | None
    outdated: bool


class Round(NamedTuple):
    """A turn, and what happens until the next one: `edits` picks an earlier turn to replace."""

    chat: int
    words: tuple[int, ...]
    reply: int
    edits: int | None
    draft: bool
    silence: bool
    rest: int
    titles: tuple[Asked, ...]


chats = st.integers(0, len(OWNERS) - 1)
titles = st.builds(
    Asked,
    chat=chats,
    at=st.integers(0, 12),
    question=st.integers(1, 12),
    output=st.integers(1, 16),
    stopped=st.none() | st.integers(0, 6),
    outdated=st.booleans(),
)
rounds = st.builds(
    Round,
    chat=chats,
    words=st.lists(st.integers(2, 9), min_size=1, max_size=12).map(tuple),
    reply=st.integers(1, 9),
    edits=st.none() | st.integers(0, 8),
    draft=st.booleans(),
    silence=st.booleans(),
    rest=st.integers(0, 12),
    titles=st.lists(titles, max_size=3).map(tuple),
)
lives = st.lists(rounds, min_size=2, max_size=12)


class Life:
    """What is lived at one desk. Titles are asked for of the conversations in `titled` alone."""

    def __init__(self, desk: Desk, titled: Collection[int]) -> None:
        self.desk = desk
        self.turns: list[tuple[int, Turn]] = []
        self.titles: list[Job] = []
        self._titled = titled
        self._logs: list[list[int]] = [[] for _ in OWNERS]
        self._starts: list[list[int]] = [[0] for _ in OWNERS]

    def live(self, one: Round) -> None:
        log, starts = self._logs[one.chat], self._starts[one.chat]
        if one.edits is not None:
            at = one.edits % len(starts)
            del log[starts[at] :], starts[at + 1 :]
        if one.silence:
            self.desk.now += SILENCE_S
        prompt = [*log, *one.words]
        if len(prompt) + one.reply > self.desk.config.context_tokens:
            return
        if one.draft:
            draft = self.desk.submit(self._job(one.chat, prompt, JobClass.DRAFT, 0))
            while draft.job_id not in self.desk.ended:  # computed, or refused for want of room
                self.desk.step()
        before = [list(log) for log in self._logs]
        turn = self.desk.submit(self._job(one.chat, prompt, JobClass.INTERACTIVE, one.reply))
        log[:] = prompt
        self._play(one, turn, before)
        self.turns.append((one.chat, self.desk.finish(turn)))
        log += self.turns[-1][1].token_ids
        starts.append(len(log))

    def _play(self, one: Round, turn: Job, before: Sequence[Sequence[int]]) -> None:
        """Step until the turn has ended and the rest is over."""
        stops: list[tuple[int, Job]] = []
        step, rest = 0, one.rest
        while turn.job_id not in self.desk.ended or rest:
            rest -= turn.job_id in self.desk.ended
            for asked in one.titles:
                if asked.at == step and asked.chat in self._titled:
                    ids = (before if asked.outdated else self._logs)[asked.chat]
                    job = self._ask(asked, ids)
                    if job is not None and asked.stopped is not None:
                        stops.append((step + asked.stopped, job))
            for at, job in stops:
                if at == step:
                    self.desk.cancel(job)
            self.desk.step()
            step += 1

    def _ask(self, asked: Asked, ids: Sequence[int]) -> Job | None:
        prompt = [*ids, *range(60, 60 + asked.question)]
        job = self._job(asked.chat, prompt, JobClass.BACKGROUND, asked.output)
        try:
            self.titles.append(self.desk.submit(job))
        except PromptTooLong:
            return None
        return job

    def _job(self, chat: int, ids: Sequence[int], job_class: JobClass, output: int) -> Job:
        owner_id, session = OWNERS[chat], f"chat {chat}"
        return self.desk.job(
            ids, owner_id=owner_id, session=session, output=output, job_class=job_class
        )


def lived(desk: Desk, life: Sequence[Round], titled: Collection[int] = ()) -> Life:
    """The whole life, to its end."""
    there = Life(desk, titled)
    for one in life:
        there.live(one)
    desk.drain()
    desk.core.check()
    return there
