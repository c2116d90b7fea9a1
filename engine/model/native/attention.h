// Causal attention over keys and values that lie in the pool's blocks, read where they lie.
//
// Two forms, both with a softmax in float over one part of the keys at a time, joined with what
// came before. One token's rows (its query heads over one KV head) take a key at a time, and a part
// of the keys is a task, so that one long sequence keeps every thread busy. Rows of many tokens
// stand side by side in 32 lanes, and a key is one row of a matrix product: nothing is transposed
// and nobody reads a slot beyond the sequence.
//
// Queries come scaled, by log2(e) as well: weights are powers of two.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"

namespace keepwarm {

constexpr long PART_KEYS = 256;  // of a task of one token
constexpr long TILE_KEYS = 128;  // of a round over many tokens' lanes
constexpr long MOST_GROUP = 16;  // query heads that share a KV head

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
    // How many of the positions [start, end) lie in neighbouring slots from `start` on.
    long neighbours(const int32_t* table, long start, long end) const {
        long block = start / block_tokens, stop = (block + 1) * block_tokens;
        for (; stop < end && table[block + 1] == table[block] + 1; block++) stop += block_tokens;
        return std::min(stop, end) - start;
    }
};

// Lanes [first_lane, ...) of tokens x group of one sequence and KV head; its first token stands at
// `position`. For one token: its keys [PART_KEYS * part, ...), `partial` says where the result goes
// if there are several parts.
struct Task {
    const int32_t* table;
    long kv_head, position, tokens, first_lane;
    long query_row, out_row;
    long part, partial;
};

// What a thread needs for one task at a time.
template <class T>
struct Desk {
    explicit Desk(long head_size)
        : queries(head_size * 2), scores(TILE_KEYS * 2), chances(TILE_KEYS * 2),
          values(TILE_KEYS * head_size / LANES), mixed(head_size * 2), rows(head_size * 2) {}
    std::vector<Units> queries;   // [head size in units][32 lanes]
    std::vector<Floats> scores;   // [keys][32 lanes]
    std::vector<Units> chances;   // [keys in units][32 lanes]
    std::vector<Units> values;    // [keys in units][head size]
    std::vector<Floats> mixed;    // [head size][32 lanes]
    std::vector<Floats> rows;     // [32 lanes][head size]
};

// The result of one part of the keys for one query head: largest score, sum of weights, mixture.
struct Partial {
    float most, sum;
    alignas(64) float mixed[];
    static long floats(long head_size) { return LANES + head_size; }
};

inline Partial& partial_at(float* partials, long index, long head_size) {
    return *(Partial*)(partials + index * Partial::floats(head_size));
}

// ---------------------------------------------------------------- one token

template <class T>
void score_keys(const Paged<T>& kv, const Task& task, const T* query, long start, long end,
                float (*scores)[PART_KEYS]) {
    const long vectors = kv.head_size / PER_UNIT<T> / LANES;
    for (long from = start; from < end; from += LANES) {
        const long count = std::min(end - from, LANES);
        const T* keys[LANES];
        for (long i = 0; i < LANES; i++)
            keys[i] = kv.keys + kv.offset(task.table, from + std::min(i, count - 1), task.kv_head);
        for (long g = 0; g < kv.group; g++) {
            Floats products[LANES] = {};
            for (long v = 0; v < vectors; v++) {
                const long at = v * LANES * PER_UNIT<T>;
                const Units held = load<Units>(query + g * kv.head_size + at);
#pragma GCC unroll 16
                for (long i = 0; i < LANES; i++)
                    products[i] = mac<T>(products[i], load<Units>(keys[i] + at), held);
            }
            store(&scores[g][from - start], sums(products));
        }
        for (long g = 0; g < kv.group; g++)
            for (long i = count; i < LANES; i++) scores[g][from - start + i] = -INFINITY;
    }
}

template <class T, long HEADS>
void mix_values(const Paged<T>& kv, const Task& task, long start, long end,
                float (*chances)[PART_KEYS], long at, Floats (*mixed)[4]) {
    Floats held[HEADS][4] = {};
    for (long key = start; key < end; key += PER_UNIT<T>) {
        const long second = std::min(key + PER_UNIT<T> - 1, end - 1);
        const T* one = kv.values + kv.offset(task.table, key, task.kv_head) + at;
        const T* other = kv.values + kv.offset(task.table, second, task.kv_head) + at;
        Units chance[HEADS];
        for (long g = 0; g < HEADS; g++) {
            const float* two = &chances[g][key - start];
            chance[g] = weights((const T*)nullptr, splat(two[0]), splat(two[PER_UNIT<T> - 1]));
        }
#pragma GCC unroll 4
        for (long v = 0; v < 4; v++) {
            const Units joint = joined(one + v * LANES, other + v * LANES);
#pragma GCC unroll 4
            for (long g = 0; g < HEADS; g++) held[g][v] = mac<T>(held[g][v], joint, chance[g]);
        }
    }
    for (long g = 0; g < HEADS; g++)
        for (long v = 0; v < 4; v++) mixed[g][v] = held[g][v];
}

template <class T>
void mix_heads(const Paged<T>& kv, const Task& task, long start, long end,
               float (*chances)[PART_KEYS], long heads, long at, Floats (*mixed)[4]) {
    switch (heads) {
        case 1: return mix_values<T, 1>(kv, task, start, end, chances, at, mixed);
        case 2: return mix_values<T, 2>(kv, task, start, end, chances, at, mixed);
        case 3: return mix_values<T, 3>(kv, task, start, end, chances, at, mixed);
        default: return mix_values<T, 4>(kv, task, start, end, chances, at, mixed);
    }
}

// One token over one part of its keys: to `out`, or to the task's partials where there are several.
template <class T>
void attend_one(const Paged<T>& kv, const Task& task, const T* queries, T* out, float* partials) {
    const long start = task.part * PART_KEYS;
    const long end = std::min(task.position + 1, start + PART_KEYS);
    const long heads = kv.kv_heads * kv.group;
    const long head = task.kv_head * kv.group;
    alignas(64) float scores[MOST_GROUP][PART_KEYS];
    float most[MOST_GROUP], total[MOST_GROUP];
    const T* query = queries + (task.query_row * heads + head) * kv.head_size;
    score_keys(kv, task, query, start, end, scores);
    for (long g = 0; g < kv.group; g++) {
        Floats high = load<Floats>(scores[g]), weight{};
        for (long i = LANES; i < end - start; i += LANES)
            high = largest(high, load<Floats>(&scores[g][i]));
        most[g] = largest(high);
        for (long i = 0; i < end - start; i += LANES) {
            const Floats chance = exp2(load<Floats>(&scores[g][i]) - most[g]);
            weight += chance;
            store(&scores[g][i], chance);
        }
        total[g] = sum(weight);
    }
    for (long at = 0; at < kv.head_size; at += 4 * LANES)
        for (long g = 0; g < kv.group; g += 4) {
            const long count = std::min(kv.group - g, 4l);
            Floats mixed[4][4];
            mix_heads(kv, task, start, end, scores + g, count, at, mixed);
            for (long i = 0; i < count; i++) {
                if (task.partial < 0) {
                    T* to = out + (task.out_row * heads + head + g + i) * kv.head_size + at;
                    for (long v = 0; v < 4; v++)
                        store_as(to + v * LANES, mixed[i][v] * (1.0f / total[g + i]));
                } else {
                    Partial& to = partial_at(partials, task.partial + g + i, kv.head_size);
                    to.most = most[g + i];
                    to.sum = total[g + i];
                    for (long v = 0; v < 4; v++) store(to.mixed + at + v * LANES, mixed[i][v]);
                }
            }
        }
}

// Joins the parts of one token and KV head; `task` is that of its first part.
template <class T>
void join_parts(const Paged<T>& kv, const Task& task, T* out, float* partials) {
    const long parts = task.position / PART_KEYS + 1;
    for (long g = 0; g < kv.group; g++) {
        auto part = [&](long i) -> Partial& {
            return partial_at(partials, task.partial + i * kv.group + g, kv.head_size);
        };
        float most = part(0).most, total = 0;
        for (long i = 1; i < parts; i++) most = std::max(most, part(i).most);
        for (long i = 0; i < parts; i++) total += part(i).sum * std::exp2(part(i).most - most);
        const long head = (task.out_row * kv.kv_heads + task.kv_head) * kv.group + g;
        for (long d = 0; d < kv.head_size; d += LANES) {
            Floats mixed{};
            for (long i = 0; i < parts; i++)
                mixed += load<Floats>(part(i).mixed + d) * (std::exp2(part(i).most - most) / total);
            store_as(out + head * kv.head_size + d, mixed);
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
    for (long key = start; key < end; key += PER_UNIT<T>) {
        const long second = std::min(key + PER_UNIT<T> - 1, end - 1);
        const T* one = kv.values + kv.offset(task.table, key, task.kv_head);
        const T* other = kv.values + kv.offset(task.table, second, task.kv_head);
        Units* to = &desk.values[(key - start) / PER_UNIT<T> * size / LANES];
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
