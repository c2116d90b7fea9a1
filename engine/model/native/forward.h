// One step through all layers of a decoder of the Llama family.
//
// Owns the order of stages and what lies between them. The residual is float; what is multiplied
// is in the model's own format, or in the groups of its file: where rows are few, and where many
// are multiplied faster as bytes. In the last layer only rows that draw go on behind the KV.
#pragma once

#include "grouped.h"
#include "tasks.h"

namespace keepwarm {

// What Python fills in; engine/model/native/library.py has the same fields in the same order.
// `groups` are panels of that many bits, for up to `few_rows` rows; and for more, with `in_bytes`,
// which asks for four bits of all layers.
struct Weight {
    const void* panels;
    const void* groups;
    int64_t bits;
};

struct Layer {
    const float* attention_norm;
    Weight qkv;
    const float* qkv_bias;
    Weight output;
    const float* mlp_norm;
    Weight gate_up, down;
    const void* keys;
    const void* values;
};

struct Model {
    const Layer* layers;
    const float* norm;
    Weight head;
    const void* embedding;
    const float* frequencies;
    int64_t layer_count, width, inner, heads, kv_heads, head_size, vocabulary, block_tokens;
    int64_t embedding_is_packed, few_rows, in_bytes;
    float epsilon, scaling, rotary_scaling;
};

struct Step {
    Runs runs;
    const int32_t *token_ids, *draw_rows;
    float* logits;
    int64_t draws;
};

// What rows are multiplied as: the model's format, or digits of groups.
enum class Form { PLAIN, SHORTS, BYTES };

// Rows that are about to be multiplied, in one of these.
template <class T>
class Factors {
  public:
    void open(long rows, long width, Form form) {
        width_ = width;
        form_ = form;
        const long groups = rows * width / GROUP;
        if (form == Form::PLAIN) plain_ = plain_store_.at_least(rows * width);
        if (form == Form::SHORTS) shorts_ = short_store_.at_least(groups);
        if (form == Form::BYTES) bytes_ = byte_store_.at_least(groups);
    }
    // A row's numbers of the group that begins at `column`.
    void put(long row, long column, const Floats (&numbers)[GROUP_VECTORS]) {
        const long at = row * width_ + column;
        if (form_ == Form::SHORTS) return regroup(numbers, shorts_ + at / GROUP);
        if (form_ == Form::BYTES) return regroup(numbers, bytes_ + at / GROUP);
        for (long v = 0; v < GROUP_VECTORS; v++) store_as(plain_ + at + v * LANES, numbers[v]);
    }
    Form form() const { return form_; }
    T* plain() const { return plain_; }
    const RowGroup<Short>* shorts() const { return shorts_; }
    const RowGroup<Byte>* bytes() const { return bytes_; }
    long width() const { return width_; }

  private:
    long width_ = 0;
    Form form_ = Form::PLAIN;
    T* plain_ = nullptr;
    RowGroup<Short>* shorts_ = nullptr;
    RowGroup<Byte>* bytes_ = nullptr;
    Grown<T> plain_store_;
    Grown<RowGroup<Short>> short_store_;
    Grown<RowGroup<Byte>> byte_store_;
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
        products_ = product_store_.at_least(rows * qkv_width());
        queries_ = query_store_.at_least(rows * query_width());
        turns_ = turn_store_.at_least(rows * model_.head_size);
        attention_.plan(step.runs, step.draw_rows, step.draws);
        share_rows(rows, [&](long row) { embed(step.token_ids[row], row); });
        for (long at = 0; at < model_.layer_count; at++) layer(step, at);
        const long draws = step.draws;
        if (draws == 0) return;
        // Nothing is rounded to bytes that is drawn from.
        const bool in_groups = form(draws) != Form::PLAIN;
        normalise(draws, model_.norm, in_groups ? Form::SHORTS : Form::PLAIN);
        const long vocabulary = model_.vocabulary;
        multiply<1>(input_, model_.head, draws, vocabulary,
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

    // Rows with a weight of `columns` columns; `emit` gets each row's sums of a panel, or of two
    // neighbouring ones.
    template <long PANELS, class Emit>
    void multiply(const Factors<T>& from, const Weight& weight, long rows, long columns,
                  const Emit& emit) {
        constexpr long WIDE = PANELS * PANEL;
        const long width = from.width(), groups = width / GROUP;
        crew_.share((columns + WIDE - 1) / WIDE, [&](long item, int) {
            const auto emit_item = [&](long row, const Floats(&sums)[2 * PANELS]) {
                emit(row, item * WIDE, sums);
            };
            const long panel = item * PANELS;
            const auto* grouped = (const char*)weight.groups;
            if (from.form() == Form::PLAIN)
                product<T, PANELS>(from.plain(), rows, width,
                                   (const T*)weight.panels + panel * PANEL * width, emit_item);
            else if (from.form() == Form::BYTES)
                group_product<4, PANELS>(from.bytes(), rows, width,
                                         grouped + panel * groups * GROUP_BYTES<4>, emit_item);
            else if (weight.bits == 4)
                group_product<4, PANELS>(from.shorts(), rows, width,
                                         grouped + panel * groups * GROUP_BYTES<4>, emit_item);
            else
                group_product<8, PANELS>(from.shorts(), rows, width,
                                         grouped + panel * groups * GROUP_BYTES<8>, emit_item);
        });
    }

    Form form(long rows) const {
        if (rows <= model_.few_rows) return Form::SHORTS;
        return model_.in_bytes ? Form::BYTES : Form::PLAIN;
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

    void normalise(long rows, const float* weight, Form form) {
        input_.open(rows, model_.width, form);
        share_rows(rows, [&](long row) { normalise_row(row, weight); });
    }

    void normalise_row(long row, const float* weight) {
        const long width = model_.width;
        const float* from = residual_ + row * width;
        Floats squares[2] = {};
        for (long k = 0; k < width; k += 2 * LANES)
            for (long v = 0; v < 2; v++) {
                const Floats x = load<Floats>(from + k + v * LANES);
                squares[v] += x * x;
            }
        const float mean = sum(squares[0] + squares[1]) / float(width);
        const Floats scale = splat(1.0f / std::sqrt(mean + model_.epsilon));
        for (long k = 0; k < width; k += GROUP) {
            Floats scaled[GROUP_VECTORS];
            for (long v = 0; v < GROUP_VECTORS; v++) {
                const long at = k + v * LANES;
                scaled[v] = load<Floats>(from + at) * scale * load<Floats>(weight + at);
            }
            input_.put(row, k, scaled);
        }
    }

    void layer(const Step& step, long at) {
        const Layer& layer = model_.layers[at];
        const bool is_last = at == model_.layer_count - 1;
        const long rows = step.runs.rows(), left = is_last ? step.draws : rows;
        normalise(rows, layer.attention_norm, form(rows));
        multiply<1>(input_, layer.qkv, rows, qkv_width(),
                    [&](long row, long column, const Floats(&sums)[2]) {
                        float* to = products_ + row * qkv_width() + column;
                        for (long v = 0; v < 2; v++) store(to + v * LANES, sums[v]);
                    });
        share_rows(rows, [&](long row) { place(layer, row); });
        if (is_last && step.draws == 0) return;
        attend(layer, left, is_last ? Reads::DRAWN : Reads::ALL);
        if (is_last) keep_drawn(step);
        const auto add_item = [&](long row, long column, const Floats(&sums)[2]) {
            add(row, column, sums);
        };
        multiply<1>(mixed_, layer.output, left, model_.width, add_item);
        normalise(left, layer.mlp_norm, form(left));
        inner_.open(left, model_.inner, form(left));
        // Panels of both stand in turn: as many of each as a group has columns.
        constexpr long TURNS = GROUP / PANEL;
        multiply<2 * TURNS>(input_, layer.gate_up, left, 2 * model_.inner,
                            [&](long row, long column, const Floats(&sums)[4 * TURNS]) {
                                Floats gated[GROUP_VECTORS];
                                for (long v = 0; v < GROUP_VECTORS; v++) {
                                    const long gate = v / 2 * 4 + v % 2;
                                    gated[v] = silu(sums[gate]) * sums[gate + 2];
                                }
                                inner_.put(row, column / 2, gated);
                            });
        multiply<1>(inner_, layer.down, left, model_.width, add_item);
    }

    void attend(const Layer& layer, long rows, Reads reads) {
        const T *keys = (const T*)layer.keys, *values = (const T*)layer.values;
        mixed_.open(rows, query_width(), form(rows));
        if (mixed_.form() == Form::PLAIN)
            return attention_.run(keys, values, queries_, mixed_.plain(), reads);
        T* plain = plain_store_.at_least(rows * query_width());
        attention_.run(keys, values, queries_, plain, reads);
        share_rows(rows, [&](long row) {
            const T* from = plain + row * query_width();
            for (long k = 0; k < query_width(); k += GROUP) {
                Floats mixed[GROUP_VECTORS];
                for (long v = 0; v < GROUP_VECTORS; v++) mixed[v] = floats(from + k + v * LANES);
                mixed_.put(row, k, mixed);
            }
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
    void keep_drawn(const Step& step) {
        for (long i = 0; i < step.draws; i++)
            std::memmove(residual_ + i * model_.width, residual_ + step.draw_rows[i] * model_.width,
                         model_.width * sizeof(float));
    }

    const Model model_;
    Crew crew_;
    Attention<T> attention_;
    Grown<float> residual_store_, product_store_, turn_store_;
    Grown<T> query_store_, plain_store_;
    Factors<T> input_, mixed_, inner_;
    float *residual_ = nullptr, *products_ = nullptr, *turns_ = nullptr;
    T* queries_ = nullptr;
};

}  // namespace keepwarm
