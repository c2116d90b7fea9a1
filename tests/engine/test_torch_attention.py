"""The two forms of attention in torch against the float64 reference."""

import pytest
import torch

from engine.model.torch_attention import ROW_CHUNK, attend_many, attend_single
from tests.kit.paged import reference

SIZE = 16


def random_kv(rows: int, tokens: int, heads: tuple[int, int], dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(rows * 1000 + tokens)

    def draw(count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, SIZE, generator=generator).to(dtype)

    return draw(rows, heads[0]), draw(tokens, heads[1]), draw(tokens, heads[1])


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize(("rows", "tokens"), [(2, 2), (7, 7), (3, 40), (33, 34), (65, 200)])
def test_many_rows_equal_the_reference(rows, tokens, heads):
    query, keys, values = random_kv(rows, tokens, heads)

    out = attend_many(query, keys, values, 0.3)

    torch.testing.assert_close(
        out.double(), reference(query, keys, values, 0.3), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("rows", [ROW_CHUNK - 1, ROW_CHUNK, ROW_CHUNK + 1, 2 * ROW_CHUNK + 3])
def test_row_chunks_leave_no_seam(rows):
    query, keys, values = random_kv(rows, rows + 5, (2, 1))

    out = attend_many(query, keys, values, SIZE**-0.5)

    expected = reference(query, keys, values, SIZE**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 5, ROW_CHUNK, 10_000])
def test_a_window_moves_over_row_chunks(window):
    query, keys, values = random_kv(ROW_CHUNK + 9, ROW_CHUNK + 50, (2, 1))

    out = attend_many(query, keys, values, 0.3, window=window)

    expected = reference(query, keys, values, 0.3, window=window)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_keys_may_be_a_view_into_a_larger_store():
    query, keys, values = random_kv(5, 64, (6, 2))
    inside = slice(20, 40)

    out = attend_many(query, keys[inside], values[inside], 0.2)

    expected = reference(query, keys[inside], values[inside], 0.2)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 1)])
def test_single_rows_of_several_sequences_equal_the_reference(heads):
    lengths = [1, 5, 17, 32]
    longest = max(lengths)
    query, _, _ = random_kv(len(lengths), longest, heads)
    sequences = [random_kv(1, length, heads)[1:] for length in lengths]
    # Padding repeats a row that is there, as the paged step does.
    padded = [
        [torch.cat([kv, kv[:1].expand(longest - len(kv), -1, -1)]) for kv in sequence]
        for sequence in sequences
    ]
    bias = torch.where(torch.arange(longest) < torch.tensor(lengths)[:, None], 0.0, -torch.inf)

    out = attend_single(
        query,
        torch.stack([keys for keys, _ in padded]),
        torch.stack([values for _, values in padded]),
        bias=bias,
        scaling=0.3,
    )

    for at, (keys, values) in enumerate(sequences):
        expected = reference(query[at : at + 1], keys, values, 0.3)
        torch.testing.assert_close(out[at : at + 1].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 300), (49, 300)])
def test_bfloat16_rounds_and_does_no_more(rows, tokens):
    query, keys, values = random_kv(rows, tokens, (9, 3), torch.bfloat16)

    if rows == 1:
        out = attend_single(query, keys[None], values[None], bias=None, scaling=SIZE**-0.5)
    else:
        out = attend_many(query, keys, values, SIZE**-0.5)

    expected = reference(query, keys, values, SIZE**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
