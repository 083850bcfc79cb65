/* Sums over arrays as large as a model, and choices between them, each in one pass by the thread that asks: XLA would
   share such a pass with threads that are busy with another device. */
#include "vectors.h"

enum { MOST = 16, SPAN = 4 * LANES };

/* A few vectors of the result. The first array comes last, so that small numbers meet before they meet a large one. */
INLINE void add_up(int width, int64_t count, const float *scales, const float *const *arrays, int64_t i, float *to) {
    vec sums[4] = {};
    for (int64_t t = count; t--;)
        UNROLL for (int v = 0; v < width; v++) sums[v] += scales[t] * load(arrays[t] + i + v * LANES);
    UNROLL for (int v = 0; v < width; v++) store(to + i + v * LANES, sums[v]);
}

/* Arrays of one size into one of them or another: the arguments from the first on, of which the first is scales [count].
   What a scale of zero belongs to is not even read, so it may be NaN. */
static void weighted_sum(XLA_FFI_CallFrame *frame, int first, int64_t size, float *to) {
    const float *given = argument(frame, first)->data, *arrays[MOST];
    float scales[MOST];
    int64_t count = 0, i = 0;
    for (int64_t t = 0; first + t + 1 < frame->args.size; t++) {
        if (given[t] == 0) continue;
        scales[count] = given[t];
        arrays[count++] = argument(frame, first + t + 1)->data;
    }
    if (count == 1 && scales[0] == 1 && arrays[0] == to) return;
    for (; i + SPAN <= size; i += SPAN) add_up(4, count, scales, arrays, i, to);
    for (; i + LANES <= size; i += LANES) add_up(1, count, scales, arrays, i, to);
    for (; i < size; i++) {
        float sum = 0;
        for (int64_t t = count; t--;) sum += scales[t] * arrays[t][i];
        to[i] = sum;
    }
}

/* args: scales [count], then arrays of one size, of which the first may be the result; rets: the arrays times their
   scales, added up. */
XLA_FFI_Error *fedmime_weighted_sum(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    weighted_sum(frame, 0, elements(result(frame, 0)), result(frame, 0)->data);
    return NULL;
}

/* args: a table [rows, ...], the number of a row, scales [count], then arrays of a row's size; rets: the table, in its
   own memory, that row now the arrays times their scales, added up. Without such a row nothing is done. */
XLA_FFI_Error *fedmime_put(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    int32_t row = *(const int32_t *)argument(frame, 1)->data;
    int64_t rows = result(frame, 0)->dims[0], size = elements(result(frame, 0)) / rows;
    if (row >= 0 && row < rows) weighted_sum(frame, 2, size, (float *)result(frame, 0)->data + row * size);
    return NULL;
}

/* A vector's worth of terms: products of entries, or squares of their differences. */
INLINE vec term(int apart, vec a, vec b) { return apart ? (a - b) * (a - b) : a * b; }

INLINE void reduce(int apart, XLA_FFI_CallFrame *frame) {
    const float *a = argument(frame, 0)->data, *b = argument(frame, 1)->data;
    int64_t size = elements(argument(frame, 0)), i = 0;
    vec sums[4] = {};
    for (; i + SPAN <= size; i += SPAN)
        UNROLL for (int v = 0; v < 4; v++) sums[v] += term(apart, load(a + i + v * LANES), load(b + i + v * LANES));
    vec all_sums = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (; i < size; i += LANES) all_sums += term(apart, load_some(a + i, size - i), load_some(b + i, size - i));
    float sum = 0;
    for (int v = 0; v < LANES; v++) sum += all_sums[v];
    *(float *)result(frame, 0)->data = sum;
}

/* args: two arrays of one size; rets: their inner product []. */
XLA_FFI_Error *fedmime_dot(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    reduce(0, frame);
    return NULL;
}

/* The same, rets: the sum of the squares of their differences []. */
XLA_FFI_Error *fedmime_squared_distance(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    reduce(1, frame);
    return NULL;
}

/* args: a truth value as a whole number, two arrays of one size, of which the first may be the result; rets: the first
   if it is true, else the second. */
XLA_FFI_Error *fedmime_choose(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const void *from = argument(frame, *(const int32_t *)argument(frame, 0)->data ? 1 : 2)->data;
    void *to = result(frame, 0)->data;
    if (to != from) memcpy(to, from, 4 * elements(result(frame, 0)));
    return NULL;
}
