"""The statistics of `tests.chaos.tenants`: they find what is there, as often as they say."""

import random

from tests.chaos.ranks import found_shift, p_value
from tests.chaos.tenants import Seen, channels


def test_a_shift_is_found_as_often_as_is_said_and_noise_is_not():
    draw = random.Random(1)  # noqa: S311
    noise = [draw.expovariate(1.0) for _ in range(100)]
    least = found_shift(noise, 50, alpha=0.001, power=0.9, seed=1)
    lives = [draw.sample(noise, 100) for _ in range(300)]

    missed = sum(p_value([n - least for n in one[:50]], one[50:]) >= 0.001 for one in lives)
    assert missed < 60
    assert sum(p_value(one[:50], one[50:]) < 0.05 for one in lives) < 30
    assert p_value([1.0, 1.0], [1.0, 1.0]) == 1.0


def test_a_channel_that_follows_the_coin_leaks_and_one_that_does_not_is_quiet():
    draw = random.Random(2)  # noqa: S311
    watched: list[tuple[bool, Seen]] = []
    for _ in range(60):
        coin = draw.random() < 0.5
        noise = draw.gauss(1.0, 0.1)
        watched.append(
            (coin, {"words": "same", "said": str(coin), "time": noise, "hit": noise - coin})
        )

    told = {one.name: one for one in channels(watched, seed=1)}

    assert {name for name, one in told.items() if one.leaks} == {"said", "hit"}
    assert told["words"].same == "same"
    assert 0 < (told["time"].found or 0) < 0.3
