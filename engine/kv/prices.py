"""What computing a token again would take, by where it stands: measured step by step.

Knows step times and positions; decides nothing. A token's work grows with its position (attention
reads all that is before it), so a line is fitted: seconds a token = level + slope x position. The
same observations give the same line. Until the first, every position costs the same.
"""

from collections.abc import Iterable

LEAST_TOKENS = 32
"""Steps that compute fewer tell what reading the weights costs, not what a token does."""

MEMORY = 0.98
"""How much of what was seen is kept at each new step."""


class Prices:
    """A weighted least-squares line over steps, whose weights fade."""

    def __init__(self) -> None:
        self._level, self._slope = 1.0, 0.0
        self._tokens = 0.0
        self._places = 0.0
        self._squares = 0.0
        self._seconds = 0.0
        self._products = 0.0

    def learn(self, spans: Iterable[tuple[int, int]], seconds: float) -> None:
        """A step computed the tokens of each `[start, end)` in that time, all together."""
        spans = list(spans)
        tokens = sum(end - start for start, end in spans)
        if tokens < LEAST_TOKENS:
            return
        place = sum((end - start) * (start + end) / 2 for start, end in spans) / tokens
        self._tokens = MEMORY * self._tokens + tokens
        self._places = MEMORY * self._places + tokens * place
        self._squares = MEMORY * self._squares + tokens * place * place
        self._seconds = MEMORY * self._seconds + seconds
        self._products = MEMORY * self._products + seconds * place
        self._fit()

    def token_s(self, position: int) -> float:
        """Seconds for one token at `position`."""
        return self._level + self._slope * position

    def span_s(self, start: int, end: int) -> float:
        """Seconds for all tokens of `[start, end)`, one prompt's; none before anything was learned."""
        return (end - start) * self.token_s((start + end) // 2) if self._tokens else 0.0

    def _fit(self) -> None:
        """A falling line, or one through too few places, is taken for a level one."""
        mean_s, mean_place = self._seconds / self._tokens, self._places / self._tokens
        spread = self._squares / self._tokens - mean_place * mean_place
        together = self._products / self._tokens - mean_s * mean_place
        slope = max(0.0, together / spread) if spread > 1.0 else 0.0
        # Nothing is free, also where the line would say so for the first tokens.
        self._slope = min(slope, mean_s / mean_place) if mean_place else 0.0
        self._level = max(0.0, mean_s - self._slope * mean_place)
