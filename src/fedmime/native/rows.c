/* Rows of a table, copied or added up. A place beyond the table is moved to its nearest row. */
#include "vectors.h"

/* args: table [n, width], places [m]; rets: [m, width]. */
XLA_FFI_Error *fedmime_take(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    static _Thread_local unsigned steps;
    if (steps++ % 16 == 0) sign_of_life(); /* one in many is enough: devices would take the counter from each other */
    let_host_work();
    const float *table = argument(frame, 0)->data;
    const int32_t *places = argument(frame, 1)->data;
    float *to = result(frame, 0)->data;
    int64_t n = argument(frame, 0)->dims[0], width = argument(frame, 0)->dims[1], m = argument(frame, 1)->dims[0];
    for (int64_t i = 0; i < m; i++, to += width) memcpy(to, table + within(places[i], n) * width, 4 * width);
    return NULL;
}

INLINE void add_rows(int width, int64_t m, const float *table, const int32_t *places, int64_t n, int64_t stride,
                     const float *weights, float *to) {
    vec sums[8] = {};
    for (int64_t i = 0; i < m; i++) {
        const float *row = table + within(places[i], n) * stride;
        UNROLL for (int v = 0; v < width; v++) sums[v] += weights[i] * load(row + v * LANES);
    }
    UNROLL for (int v = 0; v < width; v++) store(to + v * LANES, sums[v]);
}

/* args: table [n, width], places [m], weights [m]; rets: the rows times their weights, added up [width]. */
XLA_FFI_Error *fedmime_weighted_rows(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *table = argument(frame, 0)->data, *weights = argument(frame, 2)->data;
    const int32_t *places = argument(frame, 1)->data;
    float *to = result(frame, 0)->data;
    int64_t n = argument(frame, 0)->dims[0], width = argument(frame, 0)->dims[1], m = argument(frame, 1)->dims[0];
    int64_t c = 0;
    for (; c + 8 * LANES <= width; c += 8 * LANES) add_rows(8, m, table + c, places, n, width, weights, to + c);
    for (; c + LANES <= width; c += LANES) add_rows(1, m, table + c, places, n, width, weights, to + c);
    for (; c < width; c++) {
        float sum = 0;
        for (int64_t i = 0; i < m; i++) sum += weights[i] * table[within(places[i], n) * width + c];
        to[c] = sum;
    }
    return NULL;
}
