/* Weights of a dense layer in dual form: arrays that stay as they are, and outer products of rows d with a client's examples,
   which nobody adds up before the client's last step. Until then a step needs the inner products of its examples with those
   of earlier steps, which are far fewer numbers than the weights are. */
#include "matrix.h"

enum { EARLIER = 256, LEAST = 4 }; /* examples of which inner products are found at once, and so few never alone */

/* args: a table [n, in], places in it [m], which of these are a client's (the first, how many), the panels of fixed weights
   [out, in]; rets: the client's rows [most, in], their inner products with the weights [most, out], and room for d. */
XLA_FFI_Error *fedmime_dual_begin(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *table = argument(frame, 0)->data;
    const int32_t *span = argument(frame, 2)->data, *places = (const int32_t *)argument(frame, 1)->data + span[0];
    float *rows = result(frame, 0)->data;
    int64_t n = argument(frame, 0)->dims[0], in = argument(frame, 0)->dims[1], out = result(frame, 1)->dims[1];
    for (int64_t i = 0; i < span[1]; i++) memcpy(rows + i * in, table + within(places[i], n) * in, 4 * in);
    panel_products(rows, span[1], in, argument(frame, 3)->data, out, result(frame, 1)->data);
    return NULL;
}

/* args: a client's rows [most, in], d [most, out], a place; rets: (x a^T) d [batch, out] for the rows x from this place on,
   and a and d all those before it. */
XLA_FFI_Error *fedmime_dual_products(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *rows = argument(frame, 0)->data, *d = argument(frame, 1)->data;
    float *z = result(frame, 0)->data;
    int64_t in = argument(frame, 0)->dims[1], out = argument(frame, 1)->dims[1], batch = result(frame, 0)->dims[0];
    int64_t place = *(const int32_t *)argument(frame, 2)->data;
    if (place <= 0) memset(z, 0, 4 * batch * out);
    float near[batch * (EARLIER + LEAST)];
    for (int64_t k = 0, some; k < place; k += some) {
        some = place - k < EARLIER + LEAST ? place - k : EARLIER;
        inner_products(rows + place * in, batch, in, rows + k * in, some, near);
        products(near, batch, some, d + k * out, out, k > 0, z);
    }
    return NULL;
}
