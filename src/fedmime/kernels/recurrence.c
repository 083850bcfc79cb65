/* The loops over time of a long short-term memory layer. An output of one step is an input of the next, so its
   products are small; here the sums of a unit's four gates meet in registers, where the gates open at once. */
#include <stdlib.h>

#include "vectors.h"

enum { GATES = 4 };

typedef struct {
    int64_t time, batch, hidden, panels; /* a panel: LANES units */
} Layer;

INLINE Layer layer_of(const int64_t *dims, int64_t hidden) {
    return (Layer){dims[0], dims[1], hidden, (hidden + LANES - 1) / LANES};
}
INLINE int64_t units(const Layer *l, int64_t panel) {
    int64_t left = l->hidden - panel * LANES;
    return left < LANES ? left : LANES;
}

/* u [hidden, 4 hidden] as [panels][parts of the gates][hidden][WIDEST][LANES]: what a tile multiplies lies in one stretch. */
static void pack(const float *u, const Layer *l, float *packed) {
    for (int64_t p = 0; p < l->panels; p++)
        for (int first = 0; first < GATES; first += WIDEST)
            for (int64_t k = 0; k < l->hidden; k++)
                for (int g = first; g < first + WIDEST; g++, packed += LANES)
                    store(packed, load_some(u + (k * GATES + g) * l->hidden + p * LANES, units(l, p)));
}

/* One step of a few examples and the units of one panel. */
INLINE void open_gates(int rows, int width, const Layer *l, int64_t panel, const float *h, const float *u,
                       const float *b, const float *c, float *z, float *h_new, float *c_new) {
    vec sums[GATES / WIDEST][SUMS] = {};
    int64_t n = units(l, panel), hidden = l->hidden;
    for (int part = 0; h && part < GATES / width; part++)
        product(rows, width, hidden, h, hidden, 1, u + part * hidden * width * LANES, width * LANES, sums[part]);
    for (int r = 0; r < rows; r++) {
        vec gate[GATES];
        for (int g = 0; g < GATES; g++) {
            float *place = z + (r * GATES + g) * hidden;
            vec sum = sums[g / width][r * width + g % width] + load_some(place, n) + load_some(b + g * hidden, n);
            gate[g] = g == 2 ? vtanh(sum) : sigmoid(sum);
            store_some(place, gate[g], n);
        }
        vec cell = gate[0] * gate[2] + gate[1] * (c ? load_some(c + r * hidden, n) : all(0)); /* NaN shows at once */
        store_some(c_new + r * hidden, cell, n);
        store_some(h_new + r * hidden, gate[3] * vtanh(cell), n);
    }
}

/* args: z = x w [time, batch, 4 hidden], u, b; rets: h, c [time, batch, hidden], gates in the place of z. */
XLA_FFI_Error *fedmime_lstm_forward(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    Layer l = layer_of(argument(frame, 0)->dims, argument(frame, 1)->dims[0]);
    const float *given = argument(frame, 0)->data, *u = argument(frame, 1)->data, *b = argument(frame, 2)->data;
    float *h = result(frame, 0)->data, *c = result(frame, 1)->data, *z = result(frame, 2)->data;
    int64_t step = l.batch * l.hidden, panel_size = l.hidden * GATES * LANES;
    if (z != given) memcpy(z, given, 4 * l.time * GATES * step);
    float *packed = aligned_alloc(64, 4 * l.panels * panel_size);
    if (!packed) return no_memory(frame);
    pack(u, &l, packed);
    for (int64_t t = 0; t < l.time; t++, z += GATES * step, h += step, c += step)
        for (int64_t p = 0; p < l.panels; p++)
            for (int64_t r = 0; r < l.batch;) {
                int rows = next_rows(l.batch - r, WIDEST);
                int64_t at = r * l.hidden, unit = at + p * LANES;
                ROWS(open_gates, rows, WIDEST, &l, p, t ? h - step + at : NULL, packed + p * panel_size, b + p * LANES,
                     t ? c - step + unit : NULL, z + r * GATES * l.hidden + p * LANES, h + unit, c + unit)
                r += rows;
            }
    free(packed);
    return NULL;
}

/* u transposed, [4 hidden, hidden], in panels of WIDEST vectors: [panels][4 hidden][WIDEST][LANES]. */
static void pack_transposed(const float *u, const Layer *l, float *packed) {
    enum { WIDTH = WIDEST * LANES };
    int64_t depth = GATES * l->hidden;
    for (int64_t first = 0; first < l->hidden; first += WIDTH)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t i = 0; i < WIDTH; i++)
                *packed++ = first + i < l->hidden ? u[(first + i) * depth + k] : 0;
}

/* dz of one step from what arrives at its outputs; dc goes on to the step before. */
static void close_gates(const Layer *l, const float *d, const float *dh, const float *gates, const float *c,
                        const float *before, float *dc, float *dz) {
    for (int64_t r = 0; r < l->batch; r++)
        for (int64_t p = 0; p < l->panels; p++) {
            int64_t n = units(l, p), at = r * l->hidden + p * LANES, gate = r * GATES * l->hidden + p * LANES;
            vec i = load_some(gates + gate, n), f = load_some(gates + gate + l->hidden, n);
            vec g = load_some(gates + gate + 2 * l->hidden, n), o = load_some(gates + gate + 3 * l->hidden, n);
            vec tanh_c = vtanh(load_some(c + at, n)), last = before ? load_some(before + at, n) : all(0);
            vec out = load_some(d + at, n) + load_some(dh + at, n);
            vec cell = load_some(dc + at, n) + out * o * (1 - tanh_c * tanh_c);
            store_some(dz + gate, cell * g * i * (1 - i), n);
            store_some(dz + gate + l->hidden, cell * last * f * (1 - f), n);
            store_some(dz + gate + 2 * l->hidden, cell * i * (1 - g * g), n);
            store_some(dz + gate + 3 * l->hidden, out * tanh_c * o * (1 - o), n);
            store_some(dc + at, cell * f, n);
        }
}

/* dh of a few examples and the units of one panel: dz times u transposed. */
INLINE void pull_back(int rows, int width, const Layer *l, int64_t first, const float *dz, const float *u, float *dh) {
    vec sums[SUMS] = {};
    int64_t depth = GATES * l->hidden;
    product(rows, width, depth, dz, depth, 1, u, width * LANES, sums);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < width; v++) {
            int64_t left = l->hidden - first - v * LANES;
            if (left > 0) store_some(dh + r * l->hidden + v * LANES, sums[r * width + v], left);
        }
}

/* args: cotangents of h [time, batch, hidden], gates [time, batch, 4 hidden], c, u; rets: dz in the place of gates. */
XLA_FFI_Error *fedmime_lstm_backward(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    Layer l = layer_of(argument(frame, 0)->dims, argument(frame, 3)->dims[0]);
    const float *d = argument(frame, 0)->data, *gates = argument(frame, 1)->data, *c = argument(frame, 2)->data;
    float *dz = result(frame, 0)->data;
    int64_t step = l.batch * l.hidden, depth = GATES * l.hidden;
    int64_t panels = (l.hidden + WIDEST * LANES - 1) / (WIDEST * LANES), panel_size = depth * WIDEST * LANES;
    float *packed = aligned_alloc(64, 4 * panels * panel_size), *dh = calloc(2 * step, 4), *dc = dh + step;
    if (!packed || !dh) return free(packed), free(dh), no_memory(frame);
    pack_transposed(argument(frame, 3)->data, &l, packed);
    for (int64_t t = l.time - 1; t >= 0; t--) {
        float *now = dz + t * GATES * step;
        close_gates(&l, d + t * step, dh, gates + t * GATES * step, c + t * step, t ? c + (t - 1) * step : NULL, dc, now);
        if (!t) break;
        for (int64_t p = 0; p < panels; p++)
            for (int64_t r = 0; r < l.batch;) {
                int rows = next_rows(l.batch - r, WIDEST);
                int64_t first = p * WIDEST * LANES;
                ROWS(pull_back, rows, WIDEST, &l, first, now + r * depth, packed + p * panel_size,
                     dh + r * l.hidden + first)
                r += rows;
            }
    }
    free(packed), free(dh);
    return NULL;
}
