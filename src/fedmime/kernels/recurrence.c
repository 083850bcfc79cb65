/* The loops over time of a long short-term memory layer, forwards and backwards.

       z_t = x_t W + h_{t-1} U + b, split into i, f, g, o;
       c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g),   h_t = sigmoid(o) tanh(c_t)

   Arrays are [time, batch, ...], gates in the order i, f, g, o. The products x_t W of all steps, and the gradients
   of the weights, are single large products outside of these loops. What remains at every step is h_{t-1} U for a
   mini-batch, too small for XLA's matrix routines, and a dozen element-wise operations, each of which XLA starts
   separately. Here a tile computes the four gates of LANES units for a few examples, and applies them while the
   sums are still in registers.

   A panel is LANES neighbouring units. U is packed panel by panel before the loop, because every step reads all of
   it. */
#include <stdlib.h>

#include "vectors.h"

enum { GATES = 4 };

/* The sizes of a layer. The last panel may have fewer than LANES units. */
typedef struct {
    int64_t time, batch, hidden, panels;
} Layer;

/* The sizes of a layer, from the dimensions [time, batch, ...] of one of its arrays. */
INLINE Layer layer_of(const int64_t *dims, int64_t hidden) {
    return (Layer){dims[0], dims[1], hidden, (hidden + LANES - 1) / LANES};
}

/* The number of units in a panel. */
INLINE int64_t units(const Layer *l, int64_t panel) {
    int64_t left = l->hidden - panel * LANES;
    return left < LANES ? left : LANES;
}

/* Copy u [hidden, 4 hidden] to [panels][GATES / WIDEST][hidden][WIDEST][LANES]. A tile is WIDEST vectors wide, one
   per gate, and reads its part of u as consecutive memory. Without AVX-512 registers hold two gates at a time,
   hence two parts. */
static void pack(const float *u, const Layer *l, float *packed) {
    for (int64_t p = 0; p < l->panels; p++)
        for (int first = 0; first < GATES; first += WIDEST)
            for (int64_t k = 0; k < l->hidden; k++)
                for (int g = first; g < first + WIDEST; g++, packed += LANES)
                    store(packed, load_some(u + (k * GATES + g) * l->hidden + p * LANES, units(l, p)));
}

/* One forward step of `rows` examples for the units of one panel.

   h, c          outputs and cells of the previous step, NULL at the first step, when both are zero.
   u, b          packed weights of the panel; biases from its first unit on.
   z             on entry x_t W, on return the activated gates (the forget gate after its sigmoid and so on).
   h_new, c_new  outputs and cells of this step.

   At the first step the forget gate is multiplied by zero and not left out, so that a NaN in it is not hidden. */
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
        vec cell = gate[0] * gate[2] + gate[1] * (c ? load_some(c + r * hidden, n) : all(0));
        store_some(c_new + r * hidden, cell, n);
        store_some(h_new + r * hidden, gate[3] * vtanh(cell), n);
    }
}

/* XLA target "lstm_forward". Arguments: z = x W [time, batch, 4 hidden], u [hidden, 4 hidden], b [4 hidden].
   Results: h and c [time, batch, hidden], and the activated gates [time, batch, 4 hidden], for which XLA may reuse
   the memory of z. */
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

/* Copy the transpose of u, [4 hidden, hidden], to panels of WIDEST vectors: [panels][4 hidden][WIDEST][LANES].
   Units beyond the last are zero. */
static void pack_transposed(const float *u, const Layer *l, float *packed) {
    enum { WIDTH = WIDEST * LANES };
    int64_t depth = GATES * l->hidden;
    for (int64_t first = 0; first < l->hidden; first += WIDTH)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t i = 0; i < WIDTH; i++)
                *packed++ = first + i < l->hidden ? u[(first + i) * depth + k] : 0;
}

/* Back-propagate one step through cells and gates.

   d, dh      cotangents [batch, hidden] of the outputs: from the layer above, and from the next step
   gates      activated gates [batch, 4 hidden]; dz may share their memory
   c, before  cells of this and of the previous step; `before` is NULL if there is none
   dc         on entry the cotangent of c from the next step, on return that for the previous step
   dz         result: the cotangent of z [batch, 4 hidden] */
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

/* One tile of dh = dz u^T: `rows` examples, units from `first` on. dz is [rows, 4 hidden], u a panel of
   pack_transposed. */
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

/* XLA target "lstm_backward". Arguments: the cotangent d of h [time, batch, hidden], the activated gates [time,
   batch, 4 hidden], c [time, batch, hidden], u [hidden, 4 hidden]. Result: the cotangent of z [time, batch, 4
   hidden], for which XLA may reuse the memory of the gates. */
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
        close_gates(&l, d + t * step, dh, gates + t * GATES * step, c + t * step, t ? c + (t - 1) * step : NULL, dc,
                    now);
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
