// One step through all layers of a decoder of the Llama family.
//
// Owns the order of stages and what lies between them. The residual is float; what is multiplied
// is in the model's own format. In the last layer only rows that draw go on behind the KV.
#pragma once

#include "tasks.h"

namespace keepwarm {

// What Python fills in; engine/model/native/library.py has the same fields in the same order.
struct Layer {
    const float* attention_norm;
    const void* qkv;
    const float* qkv_bias;
    const void* output;
    const float* mlp_norm;
    const void* gate_up;
    const void* down;
    const void* keys;
    const void* values;
};

struct Model {
    const Layer* layers;
    const float* norm;
    const void* head;
    const void* embedding;
    const float* frequencies;
    int64_t layer_count, width, inner, heads, kv_heads, head_size, vocabulary, block_tokens;
    int64_t embedding_is_packed;
    float epsilon, scaling, rotary_scaling;
};

struct Step {
    Runs runs;
    const int32_t *token_ids, *draw_rows;
    float* logits;
    int64_t draws;
};

template <class T>
class Forward {
  public:
    Forward(const Model& model, int threads)
        : model_(model), crew_(threads),
          attention_({model.block_tokens, model.heads, model.kv_heads, model.head_size}, crew_) {}

    void run(const Step& step) {
        const long rows = step.runs.rows(), width = model_.width;
        residual_ = residual_store_.at_least(rows * width);
        input_ = input_store_.at_least(rows * width);
        products_ = product_store_.at_least(rows * qkv_width());
        queries_ = query_store_.at_least(rows * query_width());
        mixed_ = mixed_store_.at_least(rows * query_width());
        turns_ = turn_store_.at_least(rows * model_.head_size);
        attention_.plan(step.runs, step.draw_rows, step.draws);
        share_rows(rows, [&](long row) { embed(step.token_ids[row], row); });
        for (long at = 0; at < model_.layer_count; at++) layer(step, at);
        const long draws = step.draws;
        if (draws == 0) return;
        share_rows(draws, [&](long row) { normalise(row, model_.norm); });
        const long vocabulary = model_.vocabulary;
        multiply<1>((const T*)model_.head, draws, vocabulary, width,
                    [&](long row, long column, const Floats(&sums)[2]) {
                        float* to = step.logits + row * vocabulary + column;
                        const long left = std::min(vocabulary - column, PANEL);
                        std::memcpy(to, sums, left * sizeof(float));
                    });
    }

  private:
    static constexpr long ROWS_SHARED = 4;

    long query_width() const { return model_.heads * model_.head_size; }
    long kv_width() const { return model_.kv_heads * model_.head_size; }
    long qkv_width() const { return query_width() + 2 * kv_width(); }

    // ------------------------------------------------------------ sharing out

    template <class Work>
    void share_rows(long rows, const Work& work) {
        crew_.share((rows + ROWS_SHARED - 1) / ROWS_SHARED, [&](long item, int) {
            const long end = std::min(rows, (item + 1) * ROWS_SHARED);
            for (long row = item * ROWS_SHARED; row < end; row++) work(row);
        });
    }

    // Rows of `input_` with a weight of `columns` columns; `emit` gets each row's sums of a panel,
    // or of two neighbouring ones.
    template <long PANELS, class Emit>
    void multiply(const T* weight, long rows, long columns, long width, const Emit& emit) {
        multiply_from<PANELS>(input_, weight, rows, columns, width, emit);
    }

    template <long PANELS, class Emit>
    void multiply_from(const T* from, const T* weight, long rows, long columns, long width,
                       const Emit& emit) {
        constexpr long WIDE = PANELS * PANEL;
        crew_.share((columns + WIDE - 1) / WIDE, [&](long item, int) {
            product<T, PANELS>(from, rows, width, weight + item * WIDE * width,
                               [&](long row, const Floats(&sums)[2 * PANELS]) {
                                   emit(row, item * WIDE, sums);
                               });
        });
    }

    // ------------------------------------------------------------ stages

    void embed(long token, long row) {
        const long width = model_.width, half = model_.head_size / 2;
        const T* table = (const T*)model_.embedding;
        float* to = residual_ + row * width;
        if (model_.embedding_is_packed) {
            constexpr long units = PER_UNIT<T>;
            const T* lane = table + token / PANEL * PANEL * width + token % PANEL * units;
            for (long k = 0; k < width; k++)
                to[k] = number(lane[k / units * PANEL * units + k % units]);
        } else {
            for (long k = 0; k < width; k++) to[k] = number(table[token * width + k]);
        }
        float* turn = turns_ + row * model_.head_size;
        for (long i = 0; i < half; i++) {
            const float angle = float(attention_.position(row)) * model_.frequencies[i];
            turn[i] = std::cos(angle) * model_.rotary_scaling;
            turn[half + i] = std::sin(angle) * model_.rotary_scaling;
        }
    }

    void normalise(long row, const float* weight) {
        const long width = model_.width;
        const float* from = residual_ + row * width;
        T* to = input_ + row * width;
        Floats squares[2] = {};
        for (long k = 0; k < width; k += 2 * LANES)
            for (long v = 0; v < 2; v++) {
                const Floats x = load<Floats>(from + k + v * LANES);
                squares[v] += x * x;
            }
        const float mean = sum(squares[0] + squares[1]) / float(width);
        const Floats scale = splat(1.0f / std::sqrt(mean + model_.epsilon));
        for (long k = 0; k < width; k += LANES)
            store_as(to + k, load<Floats>(from + k) * scale * load<Floats>(weight + k));
    }

    void layer(const Step& step, long at) {
        const Layer& layer = model_.layers[at];
        const bool is_last = at == model_.layer_count - 1;
        const long width = model_.width, rows = step.runs.rows();
        share_rows(rows, [&](long row) { normalise(row, layer.attention_norm); });
        multiply<1>((const T*)layer.qkv, rows, qkv_width(), width,
                    [&](long row, long column, const Floats(&sums)[2]) {
                        float* to = products_ + row * qkv_width() + column;
                        for (long v = 0; v < 2; v++) store(to + v * LANES, sums[v]);
                    });
        share_rows(rows, [&](long row) { place(layer, row); });
        if (is_last && step.draws == 0) return;
        attention_.run((const T*)layer.keys, (const T*)layer.values, queries_, mixed_,
                       is_last ? Reads::DRAWN : Reads::ALL);
        const long left = is_last ? keep_drawn(step) : rows;
        multiply_from<1>(mixed_, (const T*)layer.output, left, width, query_width(),
                         [&](long row, long column, const Floats(&sums)[2]) {
                             add(row, column, sums);
                         });
        share_rows(left, [&](long row) { normalise(row, layer.mlp_norm); });
        T* inner = inner_store_.at_least(left * model_.inner);
        multiply<2>((const T*)layer.gate_up, left, 2 * model_.inner, width,
                    [&](long row, long column, const Floats(&sums)[4]) {
                        T* to = inner + row * model_.inner + column / 2;
                        for (long v = 0; v < 2; v++)
                            store_as(to + v * LANES, silu(sums[v]) * sums[2 + v]);
                    });
        multiply_from<1>(inner, (const T*)layer.down, left, width, model_.inner,
                         [&](long row, long column, const Floats(&sums)[2]) {
                             add(row, column, sums);
                         });
    }

    static Floats silu(Floats x) { return x / (1.0f + exp2(x * -1.44269504089f)); }

    void add(long row, long column, const Floats (&sums)[2]) {
        float* to = residual_ + row * model_.width + column;
        for (long v = 0; v < 2; v++)
            store(to + v * LANES, load<Floats>(to + v * LANES) + sums[v]);
    }

    // Turns a row's queries and keys by its position; keys and values go into their slot.
    void place(const Layer& layer, long row) {
        float* from = products_ + row * qkv_width();
        if (layer.qkv_bias)
            for (long i = 0; i < qkv_width(); i++) from[i] += layer.qkv_bias[i];
        const float* turn = turns_ + row * model_.head_size;
        const long slot = attention_.slot(row);
        T* queries = queries_ + row * query_width();
        T* keys = (T*)layer.keys + slot * kv_width();
        T* values = (T*)layer.values + slot * kv_width();
        const float scale = model_.scaling * 1.44269504089f;
        for (long h = 0; h < model_.heads; h++)
            rotate(from + h * model_.head_size, turn, scale, queries + h * model_.head_size);
        from += query_width();
        for (long h = 0; h < model_.kv_heads; h++)
            rotate(from + h * model_.head_size, turn, 1.0f, keys + h * model_.head_size);
        from += kv_width();
        for (long i = 0; i < kv_width(); i += LANES)
            store_as(values + i, load<Floats>(from + i));
    }

    void rotate(const float* from, const float* turn, float scale, T* to) {
        const long half = model_.head_size / 2;
        for (long i = 0; i < half; i += LANES) {
            const Floats a = load<Floats>(from + i), b = load<Floats>(from + half + i);
            const Floats c = load<Floats>(turn + i), s = load<Floats>(turn + half + i);
            store_as(to + i, (a * c - b * s) * scale);
            store_as(to + half + i, (b * c + a * s) * scale);
        }
    }

    // Rows that draw, moved to the front: the residuals of the others have no reader any more.
    long keep_drawn(const Step& step) {
        for (long i = 0; i < step.draws; i++)
            std::memmove(residual_ + i * model_.width, residual_ + step.draw_rows[i] * model_.width,
                         model_.width * sizeof(float));
        return step.draws;
    }

    const Model model_;
    Crew crew_;
    Attention<T> attention_;
    Grown<float> residual_store_, product_store_, turn_store_;
    Grown<T> input_store_, query_store_, mixed_store_, inner_store_;
    float *residual_ = nullptr, *products_ = nullptr, *turns_ = nullptr;
    T *input_ = nullptr, *queries_ = nullptr, *mixed_ = nullptr;
};

}  // namespace keepwarm
