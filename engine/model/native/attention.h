// Causal attention over keys and values that lie in the pool's blocks, read where they lie.
//
// Two forms, both with a softmax in float over one part of the keys at a time, joined with what
// came before. One token's rows (its query heads over one KV head) take a key at a time, and a part
// of the keys is a task, so that one long sequence keeps every thread busy. Rows of many tokens
// stand side by side in a panel's lanes, and a key is one row of a matrix product: nothing is transposed
// and nobody reads a slot beyond the sequence.
//
// Queries come scaled, by log2(e) as well: weights are powers of two.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"

namespace keepwarm {

constexpr long PART_KEYS = 128;  // of a task of one token
constexpr long TILE_KEYS = 128;  // of a round over many tokens' lanes

// One layer's keys and values, and how they are addressed.
template <class T>
struct Paged {
    const T *keys, *values;
    long block_tokens, kv_heads, head_size, group;

    long slot(const int32_t* table, long position) const {
        return table[position / block_tokens] * block_tokens + position % block_tokens;
    }
    long offset(const int32_t* table, long position, long kv_head) const {
        return (slot(table, position) * kv_heads + kv_head) * head_size;
    }
    // Of each of the positions [start, end): where its row begins.
    void offsets(const int32_t* table, long start, long end, long* to) const {
        const long row = kv_heads * head_size;
        for (long at = start; at < end;) {
            const long first = slot(table, at), stop = at + block_tokens - at % block_tokens;
            for (long i = 0; at < std::min(stop, end); i++, at++) *to++ = (first + i) * row;
        }
    }
    // How many of the positions [start, end) lie in neighbouring slots from `start` on.
    long neighbours(const int32_t* table, long start, long end) const {
        long block = start / block_tokens, stop = (block + 1) * block_tokens;
        for (; stop < end && table[block + 1] == table[block] + 1; block++) stop += block_tokens;
        return std::min(stop, end) - start;
    }
};

// Lanes [first_lane, ...) of tokens x group of one sequence and KV head; its first token stands at
// `position`. For one token: all heads over keys [PART_KEYS * part, ...), to `partial` and on.
struct Task {
    const int32_t* table;
    long kv_head, position, tokens, first_lane;
    long query_row, out_row;
    long part, partial;
};

// What a thread needs for one task at a time.
template <class T>
struct Desk {
    Desk(long head_size, long heads)
        : queries(head_size * 2), scores(TILE_KEYS * 2), chances(TILE_KEYS * 2),
          values(TILE_KEYS * head_size / LANES), mixed(head_size * 2), rows(head_size * 2),
          part_scores(heads * PART_KEYS / LANES), part_mixed(heads * head_size / LANES) {}
    std::vector<Units> queries;   // [head size in units][PANEL]
    std::vector<Floats> scores;   // [keys][PANEL]
    std::vector<Units> chances;   // [keys in units][PANEL]
    std::vector<Units> values;    // [keys in units][head size]
    std::vector<Floats> mixed;    // [head size][PANEL]
    std::vector<Floats> rows;     // [PANEL][head size]
    std::vector<Floats> part_scores, part_mixed;  // [heads][PART_KEYS], [heads][head size]
};

// The result of one part of the keys for one query head: largest score, sum of weights, mixture.
struct Partial {
    float most, sum;
    alignas(4 * LANES) float mixed[];
    static long floats(long head_size) { return LANES + head_size; }
};

inline Partial& partial_at(float* partials, long index, long head_size) {
    return *(Partial*)(partials + index * Partial::floats(head_size));
}

// ---------------------------------------------------------------- one token

// Scores of keys [from, from + count), at most LANES of them, for the query heads over one KV head.
template <class T>
void score_keys(const Paged<T>& kv, const T* query, const T* const* keys, long count,
                float* scores) {
    const long vectors = kv.head_size / PER_UNIT<T> / LANES;
    for (long g = 0; g < kv.group; g++) {
        Floats products[LANES] = {};
        for (long v = 0; v < vectors; v++) {
            const long at = v * LANES * PER_UNIT<T>;
            const Units held = load<Units>(query + g * kv.head_size + at);
#pragma GCC unroll 16
            for (long i = 0; i < LANES; i++)
                products[i] = mac<T>(products[i], load<Units>(keys[i] + at), held);
        }
        Floats score = sums(products);
        for (long i = count; i < LANES; i++) score[i] = -INFINITY;
        store(scores + g * PART_KEYS, score);
    }
}

constexpr long MIXED = HAS_MANY_REGISTERS ? 4 : 2;  // vectors of a head at once

// Adds what keys [from, from + count) weigh to `mixed` of HEADS query heads, MIXED of a head's vectors.
template <class T, long HEADS>
void mix_values(const T* const* values, long count, const float* chances, long at, float* mixed,
                long head_size) {
    Floats held[HEADS][MIXED];
    for (long g = 0; g < HEADS; g++)
        for (long v = 0; v < MIXED; v++) held[g][v] = load<Floats>(mixed + g * head_size + at + v * LANES);
    for (long key = 0; key < count; key += PER_UNIT<T>) {
        const T* one = values[key] + at;
        const T* other = values[std::min(key + PER_UNIT<T> - 1, count - 1)] + at;
        Units chance[HEADS];
        for (long g = 0; g < HEADS; g++)
            chance[g] = splat(unit_at(chances + g * PART_KEYS + key / PER_UNIT<T>));
#pragma GCC unroll 4
        for (long v = 0; v < MIXED; v++) {
            const Units joint = joined(one + v * LANES, other + v * LANES);
#pragma GCC unroll 4
            for (long g = 0; g < HEADS; g++) held[g][v] = mac<T>(held[g][v], joint, chance[g]);
        }
    }
    for (long g = 0; g < HEADS; g++)
        for (long v = 0; v < MIXED; v++) store(mixed + g * head_size + at + v * LANES, held[g][v]);
}

template <class T>
void mix_heads(const Paged<T>& kv, const T* const* values, long count, const float* chances,
               float* mixed) {
    for (long at = 0; at < kv.head_size; at += MIXED * LANES)
        for (long g = 0; g < kv.group; g += 4) {
            const float* from = chances + g * PART_KEYS;
            float* to = mixed + g * kv.head_size;
            switch (kv.group - g) {
                case 1: mix_values<T, 1>(values, count, from, at, to, kv.head_size); break;
                case 2: mix_values<T, 2>(values, count, from, at, to, kv.head_size); break;
                case 3: mix_values<T, 3>(values, count, from, at, to, kv.head_size); break;
                default: mix_values<T, 4>(values, count, from, at, to, kv.head_size);
            }
        }
}

// One token over one part of its keys, all heads: sums of `partials` from the task's first one on.
// Keys are the outer loop, so that the pool is read from front to end.
template <class T>
void attend_one(const Paged<T>& kv, const Task& task, const T* queries, float* partials,
                Desk<T>& desk) {
    const long start = task.part * PART_KEYS;
    const long count = std::min(task.position + 1 - start, PART_KEYS);
    const long size = kv.head_size, heads = kv.kv_heads * kv.group;
    const T* query = queries + task.query_row * heads * size;
    float* scores = (float*)desk.part_scores.data();
    float* mixed = (float*)desk.part_mixed.data();
    long offsets[PART_KEYS];
    kv.offsets(task.table, start, start + count, offsets);
    const T* rows[LANES];
    // Into the second cache only: it takes more of them, and the first is soon full.
    const auto fetch = [&](const T* pool, long from, long to) {
        for (; from < to; from++)
            for (long i = 0; i < kv.kv_heads * size; i += LINE / long(sizeof(T)))
                __builtin_prefetch(pool + offsets[from] + i, 0, 2);
    };
    const auto each_lanes = [&](const T* pool, const auto& work) {
        for (long from = 0; from < count; from += LANES) {
            const long some = std::min(count - from, LANES);
            for (long i = 0; i < LANES; i++)
                rows[i] = pool + offsets[from + std::min(i, some - 1)];
            for (long h = 0; h < kv.kv_heads; h++) {
                // The next keys come from memory while these are at work: a share of them with each
                // head, since more at once than the core can wait for would hold it up.
                const long next = from + LANES, heads = kv.kv_heads;
                fetch(pool, std::min(count, next + LANES * h / heads),
                      std::min(count, next + LANES * (h + 1) / heads));
                work(h, from, some);
                for (long i = 0; i < LANES; i++) rows[i] += size;
            }
        }
    };
    fetch(kv.keys, 0, std::min(count, LANES));
    each_lanes(kv.keys, [&](long h, long from, long some) {
        const long head = h * kv.group;
        score_keys(kv, query + head * size, rows, some, scores + head * PART_KEYS + from);
    });
    fetch(kv.values, 0, std::min(count, LANES));
    for (long head = 0; head < heads; head++) {
        float* own = scores + head * PART_KEYS;
        Floats high = load<Floats>(own), weight{};
        for (long i = LANES; i < count; i += LANES) high = largest(high, load<Floats>(own + i));
        Partial& to = partial_at(partials, task.partial + head, size);
        to.most = largest(high);
        for (long i = 0; i < count; i += LANES) {
            const Floats chance = exp2(load<Floats>(own + i) - to.most);
            weight += chance;
            store_weights((T*)nullptr, own + i / PER_UNIT<T>, chance);
        }
        to.sum = sum(weight);
    }
    std::fill(mixed, mixed + heads * size, 0.0f);
    each_lanes(kv.values, [&](long h, long from, long some) {
        const float* chances = scores + h * kv.group * PART_KEYS + from / PER_UNIT<T>;
        mix_heads(kv, rows, some, chances, mixed + h * kv.group * size);
    });
    for (long head = 0; head < heads; head++)
        std::copy_n(mixed + head * size, size,
                    partial_at(partials, task.partial + head, size).mixed);
}

// Joins the parts of one token; `task` is that of its first part.
template <class T>
void join_parts(const Paged<T>& kv, const Task& task, T* out, float* partials) {
    const long parts = task.position / PART_KEYS + 1, heads = kv.kv_heads * kv.group;
    for (long head = 0; head < heads; head++) {
        auto part = [&](long i) -> Partial& {
            return partial_at(partials, task.partial + i * heads + head, kv.head_size);
        };
        float most = part(0).most, total = 0;
        for (long i = 1; i < parts; i++) most = std::max(most, part(i).most);
        for (long i = 0; i < parts; i++) total += part(i).sum * std::exp2(part(i).most - most);
        T* to = out + (task.out_row * heads + head) * kv.head_size;
        for (long d = 0; d < kv.head_size; d += LANES) {
            Floats mixed{};
            for (long i = 0; i < parts; i++)
                mixed += load<Floats>(part(i).mixed + d) * (std::exp2(part(i).most - most) / total);
            store_as(to + d, mixed);
        }
    }
}

// ---------------------------------------------------------------- many tokens

// The positions that a task's lanes stand at; lanes beyond its last token do as that one.
struct Lanes {
    Ints position[2];
    long first, last;
};

inline Lanes lanes_of(const Task& task, long group) {
    Lanes lanes{};
    for (long l = 0; l < PANEL; l++) {
        const long token = std::min((task.first_lane + l) / group, task.tokens - 1);
        lanes.position[l / LANES][l % LANES] = int32_t(task.position + token);
    }
    lanes.first = lanes.position[0][0];
    lanes.last = lanes.position[1][LANES - 1];
    return lanes;
}

template <class T>
void gather_queries(const Paged<T>& kv, const Task& task, const T* queries, Desk<T>& desk) {
    const long depth = kv.head_size / PER_UNIT<T>, heads = kv.kv_heads * kv.group;
    uint32_t* to = (uint32_t*)desk.queries.data();
    for (long l = 0; l < PANEL; l++) {
        const long lane = std::min(task.first_lane + l, task.tokens * kv.group - 1);
        const long row = task.query_row + lane / kv.group;
        const long head = task.kv_head * kv.group + lane % kv.group;
        const uint32_t* from = (const uint32_t*)(queries + (row * heads + head) * kv.head_size);
        for (long k = 0; k < depth; k++) to[k * PANEL + l] = from[k];
    }
}

template <class T>
void score_tile(const Paged<T>& kv, const Task& task, const Lanes& lanes, long start, long end,
                Desk<T>& desk) {
    const long depth = kv.head_size / PER_UNIT<T>;
    for (long key = start; key < end;) {
        const long count = std::min(kv.neighbours(task.table, key, end), TILE_ROWS);
        const T* from = kv.keys + kv.offset(task.table, key, task.kv_head);
        some_rows<T>(count, (const uint32_t*)from, kv.kv_heads * depth, 1,
                     (const uint32_t*)desk.queries.data(), depth,
                     (Floats(*)[2]) & desk.scores[(key - start) * 2]);
        key += count;
    }
    for (long key = std::max(start, lanes.first + 1); key < end; key++)
        for (long v = 0; v < 2; v++) {
            Floats& score = desk.scores[(key - start) * 2 + v];
            score = int32_t(key) > lanes.position[v] ? splat(-INFINITY) : score;
        }
}

// Scores to weights against the largest so far; returns what earlier sums must be scaled with.
template <class T>
void weigh_tile(long keys, Desk<T>& desk, Floats (&most)[2], Floats (&total)[2], Floats (&scale)[2]) {
    for (long v = 0; v < 2; v++) {
        Floats* scores = &desk.scores[v];
        Floats high = most[v];
        for (long key = 0; key < keys; key++) high = largest(high, scores[key * 2]);
        scale[v] = exp2(most[v] - high);
        most[v] = high;
        Floats weight{};
        for (long key = 0; key < keys; key += PER_UNIT<T>) {
            const Floats first = exp2(scores[key * 2] - high);
            Floats second{};
            if (PER_UNIT<T> == 2 && key + 1 < keys) second = exp2(scores[key * 2 + 2] - high);
            weight += first;
            if (PER_UNIT<T> == 2) weight += second;
            desk.chances[key / PER_UNIT<T> * 2 + v] = weights((const T*)nullptr, first, second);
        }
        total[v] = total[v] * scale[v] + weight;
    }
}

template <class T>
void mix_tile(const Paged<T>& kv, const Task& task, long start, long end, Desk<T>& desk,
              const Floats (&scale)[2]) {
    const long size = kv.head_size;
    const T* values = kv.values + task.kv_head * size;
    long offsets[TILE_KEYS];
    kv.offsets(task.table, start, end, offsets);
    for (long key = 0; key < end - start; key += PER_UNIT<T>) {
        const T* one = values + offsets[key];
        const T* other = values + offsets[std::min(key + PER_UNIT<T>, end - start) - 1];
        Units* to = &desk.values[key / PER_UNIT<T> * size / LANES];
        for (long d = 0; d < size; d += LANES) to[d / LANES] = joined(one + d, other + d);
    }
    const long depth = (end - start + PER_UNIT<T> - 1) / PER_UNIT<T>;
    const long tiles = (size + TILE_ROWS - 1) / TILE_ROWS;
    for (long t = 0; t < tiles; t++) {
        const long from = size * t / tiles, to = size * (t + 1) / tiles;
        Floats sums[TILE_ROWS][2];
        some_rows<T>(to - from, (const uint32_t*)desk.values.data() + from, 1, size,
                     (const uint32_t*)desk.chances.data(), depth, sums);
        for (long d = from; d < to; d++)
            for (long v = 0; v < 2; v++) {
                Floats& mixed = desk.mixed[d * 2 + v];
                mixed = mixed * scale[v] + sums[d - from][v];
            }
    }
}

template <class T>
void spread_lanes(const Paged<T>& kv, const Task& task, Desk<T>& desk, T* out) {
    const long size = kv.head_size, heads = kv.kv_heads * kv.group;
    float* rows = (float*)desk.rows.data();
    const float* mixed = (const float*)desk.mixed.data();
    for (long d = 0; d < size; d++)
        for (long l = 0; l < PANEL; l++) rows[l * size + d] = mixed[d * PANEL + l];
    const long count = std::min(PANEL, task.tokens * kv.group - task.first_lane);
    for (long l = 0; l < count; l++) {
        const long lane = task.first_lane + l;
        const long head = task.kv_head * kv.group + lane % kv.group;
        T* to = out + ((task.out_row + lane / kv.group) * heads + head) * size;
        for (long d = 0; d < size; d += LANES)
            store_as(to + d, load<Floats>(rows + l * size + d));
    }
}

template <class T>
void attend_many(const Paged<T>& kv, const Task& task, const T* queries, T* out, Desk<T>& desk) {
    const Lanes lanes = lanes_of(task, kv.group);
    // Every lane sees the first key, so no largest score stays what it begins as.
    Floats most[2] = {splat(-INFINITY), splat(-INFINITY)}, total[2] = {}, scale[2];
    std::fill(desk.mixed.begin(), desk.mixed.end(), Floats{});
    gather_queries(kv, task, queries, desk);
    for (long start = 0; start <= lanes.last; start += TILE_KEYS) {
        const long end = std::min(lanes.last + 1, start + TILE_KEYS);
        score_tile(kv, task, lanes, start, end, desk);
        weigh_tile(end - start, desk, most, total, scale);
        mix_tile(kv, task, start, end, desk, scale);
    }
    for (long i = 0; i < kv.head_size * 2; i++) desk.mixed[i] = desk.mixed[i] / total[i % 2];
    spread_lanes(kv, task, desk, out);
}

}  // namespace keepwarm
