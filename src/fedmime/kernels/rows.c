/* Rows of a table, by which a local step gathers the examples of its mini-batch.

   XLA:CPU computes a gather number by number, each with its own index arithmetic. Here every row is one memcpy. */
#include "vectors.h"

/* XLA target "take". Arguments: table [n, width], int32 places [m]. Result: [m, width]. Places outside of the table
   are clamped to its first or last row. */
XLA_FFI_Error *fedmime_take(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *table = argument(frame, 0)->data;
    const int32_t *places = argument(frame, 1)->data;
    float *to = result(frame, 0)->data;
    int64_t n = argument(frame, 0)->dims[0], width = argument(frame, 0)->dims[1], m = argument(frame, 1)->dims[0];
    for (int64_t i = 0; i < m; i++, to += width) memcpy(to, table + within(places[i], n) * width, 4 * width);
    return NULL;
}
