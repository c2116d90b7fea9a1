// The library's C interface: plain pointers, nothing of Python's or torch's.
#include "forward.h"

using namespace keepwarm;

namespace {

// What is opened: of floats, or of bfloat16.
template <template <class> class Part>
struct Open {
    Part<float>* exact = nullptr;
    Part<Bfloat>* quick = nullptr;
    ~Open() {
        delete exact;
        delete quick;
    }
};

// Attention by itself, for models whose other layers are not ours.
template <class T>
struct Reader {
    Reader(const typename Attention<T>::Shape& shape, int threads)
        : crew(threads), attention(shape, crew) {}
    void run(const Runs& runs, const void* keys, const void* values, const void* queries, void* out) {
        attention.plan(runs, nullptr, 0);
        attention.run((const T*)keys, (const T*)values, (const T*)queries, (T*)out, Reads::ALL);
    }
    Crew crew;
    Attention<T> attention;
};

template <class T>
void linear(const T* rows, const T* panels, T* out, long count, long width, long columns, long step) {
    for (long panel = 0; panel * PANEL < columns; panel++)
        product<T, 1>(rows, count, width, panels + panel * step * PANEL * width,
                      [&](long row, const Floats(&sums)[2]) {
                          T narrow[PANEL];
                          for (long v = 0; v < 2; v++) store_as(narrow + v * LANES, sums[v]);
                          const long left = std::min(columns - panel * PANEL, PANEL);
                          std::memcpy(out + row * columns + panel * PANEL, narrow, left * sizeof(T));
                      });
}

template <long BITS, class Digit>
void linear_groups(const float* rows, const char* panels, float* out, long count, long width,
                   long columns, long step) {
    std::vector<RowGroup<Digit>> groups(count * width / GROUP);
    for (size_t g = 0; g < groups.size(); g++) {
        Floats numbers[GROUP_VECTORS];
        for (long v = 0; v < GROUP_VECTORS; v++)
            numbers[v] = load<Floats>(rows + g * GROUP + v * LANES);
        regroup(numbers, &groups[g]);
    }
    for (long panel = 0; panel * PANEL < columns; panel++)
        group_product<BITS, 1>(groups.data(), count, width,
                             panels + panel * step * width / GROUP * GROUP_BYTES<BITS>,
                             [&](long row, const Floats(&sums)[2]) {
                                 const long left = std::min(columns - panel * PANEL, PANEL);
                                 std::memcpy(out + row * columns + panel * PANEL, sums,
                                             left * sizeof(float));
                             });
}

}  // namespace

extern "C" {

// Columns of a packed weight that lie together.
int64_t keepwarm_panel() { return PANEL; }

// Up to so many rows groups are faster, with rows of sixteen bits.
int64_t keepwarm_few_rows() { return FEW_ROWS; }

// Whether more rows are multiplied faster in bytes, with groups of four bits.
int64_t keepwarm_prefers_bytes() { return PREFERS_BYTES; }

// `element_bytes` is 4 for float and 2 for bfloat16, here and below. The model is copied; what it
// points at must stay. What is opened serves one thread at a time.
void* keepwarm_open(const Model* model, int64_t element_bytes, int64_t threads) {
    auto* open = new Open<Forward>;
    if (element_bytes == 4)
        open->exact = new Forward<float>(*model, int(threads));
    else
        open->quick = new Forward<Bfloat>(*model, int(threads));
    return open;
}

void keepwarm_run(void* opened, const Step* step) {
    auto* open = static_cast<Open<Forward>*>(opened);
    if (open->exact)
        open->exact->run(*step);
    else
        open->quick->run(*step);
}

void keepwarm_close(void* opened) { delete static_cast<Open<Forward>*>(opened); }

void* keepwarm_open_reader(int64_t block_tokens, int64_t heads, int64_t kv_heads, int64_t head_size,
                           int64_t element_bytes, int64_t threads) {
    auto* open = new Open<Reader>;
    if (element_bytes == 4)
        open->exact = new Reader<float>({block_tokens, heads, kv_heads, head_size}, int(threads));
    else
        open->quick = new Reader<Bfloat>({block_tokens, heads, kv_heads, head_size}, int(threads));
    return open;
}

void keepwarm_read(void* opened, const Runs* runs, const void* keys, const void* values,
                   const void* queries, void* out) {
    auto* open = static_cast<Open<Reader>*>(opened);
    if (open->exact)
        open->exact->run(*runs, keys, values, queries, out);
    else
        open->quick->run(*runs, keys, values, queries, out);
}

void keepwarm_close_reader(void* opened) { delete static_cast<Open<Reader>*>(opened); }

// weight [columns, width] into panels that lie `step` panels apart.
void keepwarm_pack(const void* weight, void* panels, int64_t element_bytes, int64_t columns,
                   int64_t width, int64_t step) {
    if (element_bytes == 4)
        pack((const float*)weight, columns, width, (float*)panels, step);
    else
        pack((const Bfloat*)weight, columns, width, (Bfloat*)panels, step);
}

// out [count, columns] = rows [count, width] times the packed weight, transposed.
void keepwarm_linear(const void* rows, const void* panels, void* out, int64_t element_bytes,
                     int64_t count, int64_t width, int64_t columns, int64_t step) {
    if (element_bytes == 4)
        linear((const float*)rows, (const float*)panels, (float*)out, count, width, columns, step);
    else
        linear((const Bfloat*)rows, (const Bfloat*)panels, (Bfloat*)out, count, width, columns, step);
}

// Blocks [columns][width / 32] of Q4_1 (four bits) or Q8_0 (eight) into panels of groups that lie
// `step` panels apart.
void keepwarm_pack_groups(const void* blocks, void* panels, int64_t bits, int64_t columns,
                          int64_t width, int64_t step) {
    if (bits == 4)
        pack_groups<4>((const uint8_t*)blocks, columns, width, (char*)panels, step);
    else
        pack_groups<8>((const uint8_t*)blocks, columns, width, (char*)panels, step);
}

// As `keepwarm_linear`, of floats, which are rounded to `row_bits`: to sixteen or, with groups of
// four bits, to eight.
void keepwarm_linear_groups(const float* rows, const char* panels, float* out, int64_t bits,
                            int64_t row_bits, int64_t count, int64_t width, int64_t columns,
                            int64_t step) {
    if (bits == 8)
        linear_groups<8, Short>(rows, panels, out, count, width, columns, step);
    else if (row_bits == 16)
        linear_groups<4, Short>(rows, panels, out, count, width, columns, step);
    else
        linear_groups<4, Byte>(rows, panels, out, count, width, columns, step);
}

}  // extern "C"
