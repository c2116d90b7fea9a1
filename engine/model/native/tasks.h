// Attention of one step, cut into tasks that threads share out.
//
// What is cut depends on a run alone, never on how many threads there are or what stands beside it,
// so a run's result does not either.
#pragma once

#include "attention.h"
#include "crew.h"

namespace keepwarm {

// The runs of a step over packed rows: run r ends at row ends[r], its first row stands at position
// starts[r], and its blocks are tables[table_starts[r]...]. Python fills it in.
struct Runs {
    const int32_t *ends, *starts, *table_starts, *tables;
    int64_t count;

    long rows() const { return count ? ends[count - 1] : 0; }
};

// Which rows attend: all of them, or those that draw, packed.
enum class Reads { ALL, DRAWN };

// Memory that grows and is never given back, aligned for vectors; what it held is lost.
template <class N>
class Grown {
  public:
    N* at_least(long count) {
        const size_t vectors = count * sizeof(N) / sizeof(Units) + 1;
        if (held_.size() < vectors) held_.resize(vectors);
        return (N*)held_.data();
    }

  private:
    std::vector<Units> held_;
};

template <class T>
class Attention {
  public:
    struct Shape {
        long block_tokens, heads, kv_heads, head_size;
    };

    Attention(const Shape& shape, Crew& crew) : shape_(shape), crew_(crew) {
        for (int i = 0; i < crew.threads(); i++) desks_.emplace_back(shape.head_size, shape.heads);
    }

    // `drawn`: the rows that `Reads::DRAWN` means, ascending.
    void plan(const Runs& runs, const int32_t* drawn, long drawn_count) {
        runs_ = runs;
        row_runs_.resize(runs.rows());
        for (Set& set : sets_) set = {};
        for (long r = 0, row = 0; r < runs.count; r++) {
            const long first = row, rows = runs.ends[r] - first;
            for (; row < runs.ends[r]; row++) row_runs_[row] = int32_t(r);
            if (rows == 1)
                add_one(sets_[0], first, first);
            else
                add_many(r, first, rows);
        }
        for (long i = 0; i < drawn_count; i++) add_one(sets_[1], drawn[i], i);
    }

    long position(long row) const {
        const long run = row_runs_[row];
        return runs_.starts[run] + row - (run ? runs_.ends[run - 1] : 0);
    }

    long slot(long row) const { return paged(nullptr, nullptr).slot(table(row_runs_[row]), position(row)); }

    // queries and out: [rows, heads, head size]; queries are scaled.
    void run(const T* keys, const T* values, const T* queries, T* out, Reads reads) {
        const Set& set = sets_[reads == Reads::DRAWN];
        const Paged<T> kv = paged(keys, values);
        float* partials = partials_.at_least(set.partials * Partial::floats(shape_.head_size));
        crew_.share(long(set.tasks.size()), [&](long item, int thread) {
            const Task& task = set.tasks[item];
            if (task.tokens == 1)
                attend_one(kv, task, queries, partials, desks_[thread]);
            else
                attend_many(kv, task, queries, out, desks_[thread]);
        });
        crew_.share(long(set.joined.size()), [&](long item, int) {
            join_parts(kv, set.tasks[set.joined[item]], out, partials);
        });
    }

  private:
    struct Set {
        std::vector<Task> tasks;
        std::vector<long> joined;  // the first task of each token's
        long partials = 0;
    };

    long group() const { return shape_.heads / shape_.kv_heads; }
    const int32_t* table(long run) const { return runs_.tables + runs_.table_starts[run]; }

    Paged<T> paged(const T* keys, const T* values) const {
        return {keys, values, shape_.block_tokens, shape_.kv_heads, shape_.head_size, group()};
    }

    void add_one(Set& set, long row, long out_row) {
        const long at = position(row), parts = at / PART_KEYS + 1;
        set.joined.push_back(long(set.tasks.size()));
        for (long part = 0; part < parts; part++, set.partials += shape_.heads)
            set.tasks.push_back(
                {table(row_runs_[row]), 0, at, 1, 0, row, out_row, part, set.partials});
    }

    // Those that see most come first: what is left for the end is short.
    void add_many(long run, long row, long tokens) {
        for (long first = (tokens * group() - 1) / PANEL * PANEL; first >= 0; first -= PANEL)
            for (long h = 0; h < shape_.kv_heads; h++)
                sets_[0].tasks.push_back(
                    {table(run), h, runs_.starts[run], tokens, first, row, row, 0, -1});
    }

    const Shape shape_;
    Crew& crew_;
    std::vector<Desk<T>> desks_;
    Runs runs_{};
    std::vector<int32_t> row_runs_;
    Set sets_[2];  // by `Reads`
    Grown<float> partials_;
};

}  // namespace keepwarm
