// Matrix products with weights that lie in panels.
//
// A panel is two vectors' columns of the product: [depth in units][2 * lanes], so that one streams
// through it from front to end, whether for one row or for hundreds. Sums run over the depth in one
// order whatever rows stand beside: a row's product does not depend on what else is in the step.
#pragma once

#include "lanes.h"

namespace keepwarm {

constexpr long PANEL = 2 * LANES;

// Rows of a tile: with two vectors of sums each, three quarters of the registers.
constexpr long TILE_ROWS = HAS_MANY_REGISTERS ? 12 : 6;
constexpr long AHEAD = 96;  // depths between what is fetched and what is multiplied
constexpr long LINE = 64;   // bytes that are fetched at once

// sums[r][v] = sum over depth of a(r, k) * b(k, v), with a(r, k) the unit at row r and depth k.
// `a_row` and `a_depth` are the steps of `a`, in units; `b` has PANEL units at each depth.
template <class T, long ROWS>
inline void tile(const uint32_t* a, long a_row, long a_depth, const uint32_t* b, long depth,
                 Floats (*sums)[2]) {
    Floats held[ROWS][2] = {};
    for (long k = 0; k < depth; k++) {
        // A tile of five to eight rows is all rows of a small step: it waits for memory and for its
        // sums alike, and the core looks ahead too little by itself. Fewer wait for memory only.
        if constexpr (ROWS >= 5 && ROWS <= 8) {
            for (long unit = 0; unit < PANEL; unit += LINE / 4)
                __builtin_prefetch(b + (k + AHEAD) * PANEL + unit, 0, 2);
        }
        const Units columns[2] = {load<Units>(b + k * PANEL), load<Units>(b + k * PANEL + LANES)};
#pragma GCC unroll 12
        for (long r = 0; r < ROWS; r++) {
            const Units row = splat(unit_at(a + r * a_row + k * a_depth));
#pragma GCC unroll 2
            for (long v = 0; v < 2; v++) held[r][v] = mac<T>(held[r][v], row, columns[v]);
        }
    }
    for (long r = 0; r < ROWS; r++)
        for (long v = 0; v < 2; v++) sums[r][v] = held[r][v];
}

// `tile` for up to TILE_ROWS rows.
template <class T>
void some_rows(long rows, const uint32_t* a, long a_row, long a_depth, const uint32_t* b,
               long depth, Floats (*sums)[2]) {
    switch (rows) {
#define KEEPWARM_ROWS(n)                   \
    case n:                                \
        if constexpr (n <= TILE_ROWS)      \
            return tile<T, n>(a, a_row, a_depth, b, depth, sums)
        KEEPWARM_ROWS(1);
        KEEPWARM_ROWS(2);
        KEEPWARM_ROWS(3);
        KEEPWARM_ROWS(4);
        KEEPWARM_ROWS(5);
        KEEPWARM_ROWS(6);
        KEEPWARM_ROWS(7);
        KEEPWARM_ROWS(8);
        KEEPWARM_ROWS(9);
        KEEPWARM_ROWS(10);
        KEEPWARM_ROWS(11);
        KEEPWARM_ROWS(12);
#undef KEEPWARM_ROWS
    }
}

// The product of rows [count, width] with PANELS neighbouring panels. `emit(row, sums)` is given
// each row's sums, two vectors a panel. Rows are shared out evenly over as few tiles as will do.
template <class T, long PANELS, class Emit>
inline void product(const T* rows, long count, long width, const T* panels, const Emit& emit) {
    const long depth = width / PER_UNIT<T>;
    const long tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    for (long t = 0; t < tiles; t++) {
        const long start = count * t / tiles, end = count * (t + 1) / tiles;
        Floats sums[PANELS][TILE_ROWS][2];
        for (long p = 0; p < PANELS; p++)
            some_rows<T>(end - start, (const uint32_t*)rows + start * depth, depth, 1,
                         (const uint32_t*)panels + p * PANEL * depth, depth, sums[p]);
        for (long r = start; r < end; r++) {
            Floats row[2 * PANELS];
            for (long p = 0; p < PANELS; p++)
                for (long v = 0; v < 2; v++) row[2 * p + v] = sums[p][r - start][v];
            emit(r, row);
        }
    }
}

// Lays out weight [columns, width] in panels, `step` panels apart; what is missing of the last one
// is zero.
template <class T>
void pack(const T* weight, long columns, long width, T* panels, long step) {
    constexpr long units = PER_UNIT<T>;
    for (long start = 0; start < columns; start += PANEL, panels += step * PANEL * width)
        for (long lane = 0; lane < PANEL; lane++)
            for (long k = 0; k < width; k++)
                panels[(k / units * PANEL + lane) * units + k % units] =
                    start + lane < columns ? weight[(start + lane) * width + k] : T{};
}

}  // namespace keepwarm
