// Products with weights as a quantised file has them: in groups, of four or eight bits.
//
// Few rows wait for memory, and groups are a third of the bytes. A weight is `scale * digit + least`
// (four bits, as Q4_1 has them) or `scale * digit` (eight bits, as Q8_0 has them) with the file's own
// halves, so none is rounded. Rows are rounded to sixteen bits of the largest number in each group,
// which is finer than bfloat16, and products of digits are added up as integers: exactly.
//
// Many rows wait for products. Where a processor has none of bfloat16, they may be rounded to eight
// bits instead, whose products with weights of four take two thirds of the time of floats.
//
// A panel is those of linear.h, group after group: digits, scales, and what four bits are counted from.
#pragma once

#include "linear.h"

namespace keepwarm {

constexpr long GROUP = 32;          // weights of a column that share a scale
constexpr long GROUP_VECTORS = GROUP / LANES;
// With AVX-512 there are mostly products of bfloat16. Without, floats are what many rows are slow in.
constexpr bool PREFERS_BYTES = !HAS_MANY_REGISTERS;
constexpr long FEW_ROWS = HAS_MANY_REGISTERS ? 12 : 32;  // above, shorts are slower than what follows
constexpr long BYTES_AHEAD = 5120;  // between what is fetched and what is multiplied

template <long BITS>
constexpr long GROUP_WORDS = GROUP * BITS / 32;  // of one column
template <long BITS>
constexpr long GROUP_BYTES = PANEL * (4 * GROUP_WORDS<BITS> + (BITS == 4 ? 4 : 2));
template <long BITS>
constexpr long BLOCK_BYTES = GROUP * BITS / 8 + (BITS == 4 ? 4 : 2);  // of a column, in the file

// 32 numbers of a row: `scale` times digits. `total` is their sum, as rounded as they.
template <class Digit>
struct RowGroup {
    Digit digits[GROUP];
    float scale, total;
};
using Short = int16_t;
using Byte = int8_t;

// Rows of a tile: with sums of a group beside them, all registers; of bytes one more is faster.
template <class Digit>
constexpr long GROUP_TILE = HAS_MANY_REGISTERS ? 8 : sizeof(Digit) == 2 ? 4 : 5;

template <class Digit>
constexpr float MOST_DIGIT = sizeof(Digit) == 2 ? 32767.0f : 127.0f;

inline void store_digits(Short* to, Ints digits) {
    using Digits = Short __attribute__((vector_size(2 * LANES)));
    store(to, __builtin_convertvector(digits, Digits));
}
// Each eight in the order in which `four_digits` finds them in a word.
inline void store_digits(Byte* to, Ints digits) {
    using Digits = Byte __attribute__((vector_size(LANES)));
#ifdef __AVX512F__
    digits = __builtin_shufflevector(digits, digits, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
#else
    digits = __builtin_shufflevector(digits, digits, 0, 4, 1, 5, 2, 6, 3, 7);
#endif
    store(to, __builtin_convertvector(digits, Digits));
}

// What is no number, or infinite, makes `scale` none, and with it every product.
template <class Digit>
inline void regroup(const Floats (&numbers)[GROUP_VECTORS], RowGroup<Digit>* to) {
    constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
    Floats high{}, total{};
    for (const Floats& some : numbers) high = largest(high, some < 0 ? -some : some);
    const float most = largest(high);
    const float inverse = most > 1e-30f ? MOST_DIGIT<Digit> / most : 0.0f;
    for (long v = 0; v < GROUP_VECTORS; v++) {
        const Floats shifted = numbers[v] * inverse + ROUNDING;
        total += shifted - ROUNDING;
        store_digits(to->digits + v * LANES, (Ints)shifted);
    }
    to->scale = most / MOST_DIGIT<Digit> + sum(total) * 0.0f;
    to->total = sum(total) * to->scale;
}

// Adds both products of neighbouring shorts.
inline Ints mac_shorts(Ints sum, Units a, Units b) {
#ifdef __AVX512VNNI__
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif !defined(__AVX512F__)
    return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    sum += ((Ints)(a << 16) >> 16) * ((Ints)(b << 16) >> 16);
    return sum + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

// The i-th two digits of each word, as shorts; `pack_groups` has laid them out for it.
template <long BITS>
inline Units two_digits(Units words, long i) {
    if constexpr (BITS == 4) return (words >> uint32_t(4 * i)) & 0x000f000fu;
    return (Units)((i ? (Shorts)words : (Shorts)words << 8) >> 8);
}

// Products of four neighbouring bytes, two added up in each short: eight of them fit, for digits of
// four bits, of which `a` has no sign. `four_digits` are the first four of each word's eight, or the others.
inline Shorts mac_bytes(Shorts sum, Units a, Units b) {
#ifdef __AVX512F__
    return sum + (Shorts)_mm512_maddubs_epi16((__m512i)a, (__m512i)b);
#else
    return sum + (Shorts)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
#endif
}

inline Units four_digits(Units words, long half) { return (words >> uint32_t(4 * half)) & 0x0f0f0f0fu; }

inline Floats from_halves(const void* from) {
#ifdef __AVX512F__
    return (Floats)_mm512_cvtph_ps((__m256i)load<Halves>(from));
#else
    return (Floats)_mm256_cvtph_ps((__m128i)load<Halves>(from));
#endif
}

// parts[r][v]: the digits of row r, of `groups` groups, times those of a group of the panel's columns.
template <long BITS, long ROWS>
inline void multiply_digits(const RowGroup<Short>* rows, long groups, const char* panel,
                            Ints (&parts)[ROWS][2]) {
    constexpr long WORDS = GROUP_WORDS<BITS>, TWOS = GROUP / 2 / WORDS;
#pragma GCC unroll 8
    for (long w = 0; w < WORDS; w++) {
        const char* at = panel + w * 2 * sizeof(Units);
        const Units words[2] = {load<Units>(at), load<Units>(at + sizeof(Units))};
#pragma GCC unroll 4
        for (long i = 0; i < TWOS; i++) {
            const Units columns[2] = {two_digits<BITS>(words[0], i), two_digits<BITS>(words[1], i)};
#pragma GCC unroll 8
            for (long r = 0; r < ROWS; r++) {
                const Short* digits = rows[r * groups].digits;
                const Units row = splat(unit_at(digits + 2 * (w * TWOS + i)));
                for (long v = 0; v < 2; v++) parts[r][v] = mac_shorts(parts[r][v], columns[v], row);
            }
        }
    }
}

template <long BITS, long ROWS>
inline void multiply_digits(const RowGroup<Byte>* rows, long groups, const char* panel,
                            Ints (&parts)[ROWS][2]) {
    static_assert(BITS == 4);
    Shorts pairs[ROWS][2] = {};
#pragma GCC unroll 4
    for (long w = 0; w < GROUP_WORDS<BITS>; w++) {
        const char* at = panel + w * 2 * sizeof(Units);
        const Units words[2] = {load<Units>(at), load<Units>(at + sizeof(Units))};
#pragma GCC unroll 2
        for (long half = 0; half < 2; half++) {
            const Units columns[2] = {four_digits(words[0], half), four_digits(words[1], half)};
#pragma GCC unroll 8
            for (long r = 0; r < ROWS; r++) {
                const Units row = splat(unit_at(rows[r * groups].digits + 8 * w + 4 * half));
                for (long v = 0; v < 2; v++) pairs[r][v] = mac_bytes(pairs[r][v], columns[v], row);
            }
        }
    }
    const Units ones = splat(0x00010001u);
    for (long r = 0; r < ROWS; r++)
        for (long v = 0; v < 2; v++) parts[r][v] = mac_shorts(Ints{}, (Units)pairs[r][v], ones);
}

// sums[r][v]: row r, of `groups` groups, times the panel's columns.
template <long BITS, long ROWS, class Digit>
inline void group_tile(const RowGroup<Digit>* rows, long groups, const char* panel,
                       Floats (*sums)[2]) {
    Floats held[ROWS][2] = {};
    for (long g = 0; g < groups; g++, panel += GROUP_BYTES<BITS>) {
        // One row or two wait for memory only, and the core looks ahead enough by itself.
        if constexpr (ROWS > 2)
            for (long line = 0; line < GROUP_BYTES<BITS>; line += LINE)
                __builtin_prefetch(panel + BYTES_AHEAD + line, 0, 2);
        Ints parts[ROWS][2] = {};
        multiply_digits<BITS, ROWS>(rows + g, groups, panel, parts);
        const char* tail = panel + GROUP_WORDS<BITS> * 2 * sizeof(Units);
        for (long v = 0; v < 2; v++) {
            const Floats scale = from_halves(tail + v * sizeof(Halves));
            Floats least{};
            if (BITS == 4) least = from_halves(tail + (2 + v) * sizeof(Halves));
#pragma GCC unroll 8
            for (long r = 0; r < ROWS; r++) {
                const RowGroup<Digit>& row = rows[r * groups + g];
                held[r][v] += __builtin_convertvector(parts[r][v], Floats) * (scale * row.scale);
                if (BITS == 4) held[r][v] += least * row.total;
            }
        }
    }
    for (long r = 0; r < ROWS; r++)
        for (long v = 0; v < 2; v++) sums[r][v] = held[r][v];
}

// `group_tile` for up to GROUP_TILE rows.
template <long BITS, class Digit>
void some_groups(long rows, const RowGroup<Digit>* from, long groups, const char* panel,
                 Floats (*sums)[2]) {
    switch (rows) {
#define KEEPWARM_ROWS(n)                      \
    case n:                                   \
        if constexpr (n <= GROUP_TILE<Digit>) \
            return group_tile<BITS, n>(from, groups, panel, sums)
        KEEPWARM_ROWS(1);
        KEEPWARM_ROWS(2);
        KEEPWARM_ROWS(3);
        KEEPWARM_ROWS(4);
        KEEPWARM_ROWS(5);
        KEEPWARM_ROWS(6);
        KEEPWARM_ROWS(7);
        KEEPWARM_ROWS(8);
#undef KEEPWARM_ROWS
    }
}

// As `product` of linear.h: PANELS neighbouring panels, `emit(row, sums)` for each row.
template <long BITS, long PANELS, class Digit, class Emit>
inline void group_product(const RowGroup<Digit>* rows, long count, long width, const char* panels,
                          const Emit& emit) {
    constexpr long TILE = GROUP_TILE<Digit>;
    const long groups = width / GROUP, tiles = (count + TILE - 1) / TILE;
    for (long t = 0; t < tiles; t++) {
        const long start = count * t / tiles, end = count * (t + 1) / tiles;
        Floats sums[PANELS][TILE][2];
        for (long p = 0; p < PANELS; p++)
            some_groups<BITS>(end - start, rows + start * groups, groups,
                              panels + p * groups * GROUP_BYTES<BITS>, sums[p]);
        for (long r = start; r < end; r++) {
            Floats row[2 * PANELS];
            for (long p = 0; p < PANELS; p++)
                for (long v = 0; v < 2; v++) row[2 * p + v] = sums[p][r - start][v];
            emit(r, row);
        }
    }
}

// Lays out a file's blocks [columns][groups of `width`] in panels, `step` panels apart: two digits
// that stand side by side in a column go where `two_digits` finds them. What is missing is zero.
template <long BITS>
void pack_groups(const uint8_t* blocks, long columns, long width, char* panels, long step) {
    constexpr long WORDS = GROUP_WORDS<BITS>, TWOS = GROUP / 2 / WORDS;
    constexpr long DIGITS_AT = BITS == 4 ? 4 : 2;
    const long groups = width / GROUP;
    for (long column = 0; column < columns; column++) {
        char* to = panels + column / PANEL * step * groups * GROUP_BYTES<BITS>;
        const long lane = column % PANEL;
        for (long g = 0; g < groups; g++, to += GROUP_BYTES<BITS>, blocks += BLOCK_BYTES<BITS>) {
            const uint8_t* from = blocks + DIGITS_AT;
            const auto digit = [&](long k) -> uint32_t {
                if (BITS == 8) return from[k];
                return k < GROUP / 2 ? from[k] & 15u : from[k - GROUP / 2] >> 4;
            };
            for (long w = 0; w < WORDS; w++) {
                uint32_t word = 0;
                for (long i = 0; i < TWOS; i++) {
                    const long k = 2 * (w * TWOS + i);
                    word |= digit(k) << (BITS * i) | digit(k + 1) << (BITS * i + 16);
                }
                std::memcpy(to + (w * PANEL + lane) * sizeof word, &word, sizeof word);
            }
            for (long half = 0; half < DIGITS_AT / 2; half++)
                std::memcpy(to + WORDS * PANEL * 4 + (half * PANEL + lane) * 2, blocks + half * 2, 2);
        }
    }
}

}  // namespace keepwarm
