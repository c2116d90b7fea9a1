// Lanes of 32 bits: the arithmetic that every kernel here is written in.
//
// A lane holds a float, or a *unit*: 32 bits of neighbouring elements, which is one float or two
// bfloat16. `mac` multiplies units and adds up in float, so one kernel serves both formats. There
// are as many lanes as one register has, sixteen with AVX-512 and eight with AVX2, of which one is
// asked for before anything is built; what depends on how many registers there are is said here.
// Only products of bfloat16 and of shorts are spelled out, where there are instructions for them.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace keepwarm {

#ifdef __AVX512F__
constexpr long LANES = 16;
constexpr bool HAS_MANY_REGISTERS = true;  // 32, where AVX2 has 16
#else
constexpr long LANES = 8;
constexpr bool HAS_MANY_REGISTERS = false;
#endif

using Floats = float __attribute__((vector_size(4 * LANES)));
using Units = uint32_t __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Shorts = int16_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

struct Bfloat {
    uint16_t bits;
};

template <class T>
constexpr long PER_UNIT = 4 / sizeof(T);

template <class V>
inline V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class V>
inline void store(void* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

inline Units splat(uint32_t unit) { return Units{} + unit; }
inline Floats splat(float number) { return Floats{} + number; }

inline uint32_t unit_at(const void* from) {
    uint32_t unit;
    std::memcpy(&unit, from, sizeof unit);
    return unit;
}

template <class T>
inline Floats mac(Floats sum, Units a, Units b);

template <>
inline Floats mac<float>(Floats sum, Units a, Units b) {
    return sum + (Floats)a * (Floats)b;
}

template <>
inline Floats mac<Bfloat>(Floats sum, Units a, Units b) {
#ifdef __AVX512BF16__
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (Floats)(a << 16) * (Floats)(b << 16);
    return sum + (Floats)(a & 0xffff0000u) * (Floats)(b & 0xffff0000u);
#endif
}

// The nearest bfloat16, ties to even, in the upper halves. Infinities stay, NaN stays NaN.
inline Units rounded(Floats numbers) {
    Units bits = (Units)numbers;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

template <class T>
inline void store_as(T* to, Floats numbers);

template <>
inline void store_as<float>(float* to, Floats numbers) {
    store(to, numbers);
}

template <>
inline void store_as<Bfloat>(Bfloat* to, Floats numbers) {
    store(to, __builtin_convertvector(rounded(numbers) >> 16, Halves));
}

inline Floats floats(const float* from) { return load<Floats>(from); }
inline Floats floats(const Bfloat* from) {
    return (Floats)(__builtin_convertvector(load<Halves>(from), Units) << 16);
}

template <class T>
inline float number(T element);

template <>
inline float number<float>(float element) {
    return element;
}

template <>
inline float number<Bfloat>(Bfloat element) {
    uint32_t bits = uint32_t(element.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Units of one key's weights (float), or of two keys' (bfloat16), for each lane: none is negative.
inline Units weights(const float*, Floats first, Floats) { return (Units)first; }
inline Units weights(const Bfloat*, Floats first, Floats second) {
    Units low = ((Units)first + 0x8000u) >> 16;
    return low | (((Units)second + 0x8000u) & 0xffff0000u);
}

// As many keys' weights as there are lanes, as units in their order: two in one with bfloat16.
inline void store_weights(float*, void* to, Floats numbers) { store(to, numbers); }
inline void store_weights(Bfloat*, void* to, Floats numbers) {
    using Pairs = uint64_t __attribute__((vector_size(4 * LANES)));
    using Joined = uint32_t __attribute__((vector_size(2 * LANES)));
    const Pairs pairs = (Pairs)((Units)numbers + 0x8000u);
    const Pairs joined = ((pairs >> 32) & 0xffff0000u) | ((pairs & 0xffffffffu) >> 16);
    store(to, __builtin_convertvector(joined, Joined));
}

// Elements of one row (float), or of two rows, interleaved into units (bfloat16).
inline Units joined(const float* first, const float*) { return load<Units>(first); }
inline Units joined(const Bfloat* first, const Bfloat* second) {
    Units low = __builtin_convertvector(load<Halves>(first), Units);
    return low | (__builtin_convertvector(load<Halves>(second), Units) << 16);
}

// The larger of each lane; where `b` is no number, that.
inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }

inline float sum(Floats numbers) {
    float total = 0;
    for (long i = 0; i < LANES / 2; i++) total += numbers[i] + numbers[i + LANES / 2];
    return total;
}

inline float largest(Floats numbers) {
    float most = numbers[0];
    for (long i = 1; i < LANES; i++) most = numbers[i] > most ? numbers[i] : most;
    return most;
}

// The sum of each of as many vectors as there are lanes, in one: at each level two become one.
inline Floats sums(Floats (&v)[LANES]) {
#define KEEPWARM_FOLD(a, b, ...) \
    __builtin_shufflevector(a, b, __VA_ARGS__)
#ifdef __AVX512F__
    for (long i = 0; i < 8; i++)
        v[i] = KEEPWARM_FOLD(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               KEEPWARM_FOLD(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (long i = 0; i < 4; i++)
        v[i] = KEEPWARM_FOLD(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               KEEPWARM_FOLD(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (long i = 0; i < 2; i++)
        v[i] = KEEPWARM_FOLD(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               KEEPWARM_FOLD(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return KEEPWARM_FOLD(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           KEEPWARM_FOLD(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#else
    for (long i = 0; i < 4; i++)
        v[i] = KEEPWARM_FOLD(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
               KEEPWARM_FOLD(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (long i = 0; i < 2; i++)
        v[i] = KEEPWARM_FOLD(v[i], v[i + 2], 0, 1, 8, 9, 4, 5, 12, 13) +
               KEEPWARM_FOLD(v[i], v[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    return KEEPWARM_FOLD(v[0], v[1], 0, 8, 2, 10, 4, 12, 6, 14) +
           KEEPWARM_FOLD(v[0], v[1], 1, 9, 3, 11, 5, 13, 7, 15);
#endif
#undef KEEPWARM_FOLD
}

// 2 to the power of each lane, 1e-7 off; exactly zero below -125, minus infinity included. What is
// no number stays none.
inline Floats exp2(Floats x) {
    constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
    Floats above = largest(splat(-125.0f), x);
    Floats shifted = above + ROUNDING;
    Floats f = above - (shifted - ROUNDING);
    Floats p = splat(1.5403530393e-4f);
    p = p * f + 1.3333558146e-3f;
    p = p * f + 9.6181291077e-3f;
    p = p * f + 5.5504108664e-2f;
    p = p * f + 2.4022650696e-1f;
    p = p * f + 6.9314718056e-1f;
    p = p * f + 1.0f;
    Floats scaled = (Floats)((Ints)p + ((Ints)shifted << 23));
    return x < -125.0f ? Floats{} : scaled;
}

}  // namespace keepwarm
