/* Vectors of the width this CPU has, the product that every kernel is made of, and what XLA hands over. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "xla/ffi/api/c_api.h"

/* A tile of a product is WIDEST vectors wide where that is free to choose. Registers hold its sums, as many vectors as
   it is wide and one more. */
#ifdef __AVX512F__
enum { LANES = 16, REGISTERS = 32, SUMS = 24, WIDEST = 4 };
#else
enum { LANES = 8, REGISTERS = 16, SUMS = 12, WIDEST = 2 };
#endif
#define FIT(width) ((REGISTERS - 1 - (width)) / (width))
#define MOST_ROWS(width) (FIT(width) < SUMS / (width) && FIT(width) < 12 ? FIT(width) : SUMS / (width) < 12 ? SUMS / (width) : 12)

/* f of the number of every lane, for shuffles. */
#ifdef __AVX512F__
#define LIST(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#else
#define LIST(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24")

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec v) { *(loose *)p = v; }
INLINE vec all(float a) { return a - (vec){}; }

/* A vector that is loaded once: compilers would rather load it again for every product it is part of, and with vectors
   of eight loads are what is short. */
INLINE vec held(vec v) {
#if defined __x86_64__ && !defined __AVX512F__
    __asm__("" : "+x"(v));
#endif
    return v;
}

/* The first n numbers of a vector; the others are zero, or left alone in memory. And its last n, where p is the place of
   its first. */
#ifdef __AVX512F__
INLINE vec load_some(const float *p, int64_t n) {
    return n >= LANES ? load(p) : (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void store_some(float *p, vec v, int64_t n) {
    if (n >= LANES)
        store(p, v);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
INLINE void store_last(float *p, vec v, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)(((1u << n) - 1) << (LANES - n)), (__m512)v);
}
#else
INLINE vec load_some(const float *p, int64_t n) {
    if (n >= LANES) return load(p);
    vec v = {};
    memcpy(&v, p, 4 * n);
    return v;
}
INLINE void store_some(float *p, vec v, int64_t n) {
    if (n >= LANES)
        store(p, v);
    else
        memcpy(p, &v, 4 * n);
}
INLINE void store_last(float *p, vec v, int64_t n) { memcpy(p + LANES - n, (float *)&v + LANES - n, 4 * n); }
#endif

/* sums[r][v] += sum over k of a[r * a_row + k * a_step] * row(k)[v * LANES ...], where the k-th row is b + k * b_step, or
   if there are places, b_step after the k-th of them. `rows` and `width` are constants wherever it is called, so all sums
   stay in registers, and so is whether there are places. Meanwhile as many rows of a tile to come are fetched, `stride`
   apart from where it is `ahead`; a few at a time, for all at once would hold up what is needed now. */
INLINE void product_of_rows(int rows, int width, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                            const float *b, int64_t b_step, const float *const *places, const float *ahead,
                            int64_t stride, vec *sums) {
    vec s[SUMS];
    UNROLL for (int i = 0; i < rows * width; i++) s[i] = sums[i];
    for (int64_t k = 0; k < depth; k++) {
        vec right[SUMS];
        const float *row = places ? places[k] + b_step : b + k * b_step;
        UNROLL for (int v = 0; v < width; v++) right[v] = held(load(row + v * LANES));
        if (ahead && k < rows)
            UNROLL for (int v = 0; v < width; v++) __builtin_prefetch(ahead + k * stride + v * LANES, 1);
        UNROLL for (int r = 0; r < rows; r++) {
            vec left = all(a[r * a_row + k * a_step]);
            UNROLL for (int v = 0; v < width; v++) s[r * width + v] += left * right[v];
        }
    }
    UNROLL for (int i = 0; i < rows * width; i++) sums[i] = s[i];
}

INLINE void product(int rows, int width, int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b,
                    int64_t b_step, vec *sums) {
    product_of_rows(rows, width, depth, a, a_row, a_step, b, b_step, NULL, NULL, 0, sums);
}

/* A tile's sums into rows that lie `stride` apart. */
INLINE void store_tile(int rows, int width, const vec *sums, float *to, int64_t stride) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < width; v++) store(to + r * stride + v * LANES, sums[r * width + v]);
}

/* A place in a table of n rows. */
INLINE int64_t within(int32_t place, int64_t n) { return place < 0 ? 0 : place < n ? place : n - 1; }

/* Calls F(rows, width, ...) with constants. */
#define ROW(n, F, width, ...) \
    case n: if (n <= MOST_ROWS(width)) F(n, width, __VA_ARGS__); break;
#define ROWS(F, rows, width, ...)                                                                            \
    switch (rows) {                                                                                          \
        ROW(1, F, width, __VA_ARGS__) ROW(2, F, width, __VA_ARGS__) ROW(3, F, width, __VA_ARGS__)            \
        ROW(4, F, width, __VA_ARGS__) ROW(5, F, width, __VA_ARGS__) ROW(6, F, width, __VA_ARGS__)            \
        ROW(7, F, width, __VA_ARGS__) ROW(8, F, width, __VA_ARGS__) ROW(9, F, width, __VA_ARGS__)            \
        ROW(10, F, width, __VA_ARGS__) ROW(11, F, width, __VA_ARGS__) ROW(12, F, width, __VA_ARGS__)         \
    }

/* How many of `left` rows the next tile takes, so that all tiles are nearly alike. */
INLINE int next_rows(int64_t left, int width) {
    int64_t tiles = (left + MOST_ROWS(width) - 1) / MOST_ROWS(width);
    return (int)((left + tiles - 1) / tiles);
}

/* tanh to two units in the last place: e^2x - 1 by its series around the nearest power of two. */
INLINE vec vtanh(vec x) {
    vec twice = x + x;
    vec size = (vec)((ints)twice & 0x7fffffff);
    ints far = size > 40; /* not of NaN, which stays */
    size = (vec)((far & (ints)all(40)) | (~far & (ints)size));
    vec n = __builtin_convertvector(__builtin_convertvector(size * 1.44269504f + 0.5f, ints), vec);
    vec r = size - n * 0.693145752f - n * 1.42860677e-6f;
    vec p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r;
    vec power = (vec)((__builtin_convertvector(n, ints) + 127) << 23);
    vec e = power * p + (power - 1);
    vec t = e / (e + 2);
    return (vec)((ints)t | ((ints)x & (int32_t)0x80000000));
}
INLINE vec sigmoid(vec x) { return 0.5f + 0.5f * vtanh(0.5f * x); }

/* What XLA hands over. */
INLINE XLA_FFI_Buffer *argument(XLA_FFI_CallFrame *frame, int i) { return frame->args.args[i]; }
INLINE XLA_FFI_Buffer *result(XLA_FFI_CallFrame *frame, int i) { return frame->rets.rets[i]; }
INLINE int64_t elements(const XLA_FFI_Buffer *buffer) {
    int64_t n = 1;
    for (int64_t i = 0; i < buffer->rank; i++) n *= buffer->dims[i];
    return n;
}

/* Before the first call XLA asks which version of its interface a function was built for. */
INLINE int asks_version(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Extension_Base *more = frame->extension_start;
    while (more && more->type != XLA_FFI_Extension_Metadata) more = more->next;
    if (!more) return 0;
    XLA_FFI_Metadata *facts = ((XLA_FFI_Metadata_Extension *)more)->metadata;
    facts->api_version.major_version = XLA_FFI_API_MAJOR;
    facts->api_version.minor_version = XLA_FFI_API_MINOR;
    return 1;
}

INLINE XLA_FFI_Error *failure(XLA_FFI_CallFrame *frame, const char *message, XLA_FFI_Error_Code code) {
    XLA_FFI_Error_Create_Args why = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
        .message = message,
        .errc = code,
    };
    return frame->api->XLA_FFI_Error_Create(&why);
}

INLINE XLA_FFI_Error *no_memory(XLA_FFI_CallFrame *frame) {
    return failure(frame, "fedmime: no memory for a kernel's scratch space", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
}
