/* Cross-entropy of integer labels and its derivative with respect to the logits z [n, classes]:

       loss = log(sum of e^z) - z[label],   d = softmax(z) - e_label

   XLA compiles this to a dozen loops over the array. On the ten rows of a mini-batch each of them takes longer to
   start than to run. Here a row is read three times, for its maximum, its exponentials and their normalisation, and
   is in the first-level cache all the while. */
#include <math.h>

#include "vectors.h"

/* e^x for x <= 0, accurate to two units in the last place; NaN gives NaN.

   The method is that of vtanh in vectors.h, here with a polynomial for e^r itself. Below -87 the result would not be a
   normal number, whose exponent bits could be built directly; it is set to zero. */
INLINE vec vexp(vec x) {
    ints none = x < -87.0f;
    vec size = (vec)(~none & (ints)x);
    vec n = __builtin_convertvector(__builtin_convertvector(size * 1.44269504f - 0.5f, ints), vec);
    vec r = size - n * 0.693145752f - n * 1.42860677e-6f;
    vec p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vec power = (vec)((__builtin_convertvector(n, ints) + 127) << 23);
    return (vec)(~none & (ints)(power * p));
}

/* The larger of a and b in every lane, b where one of them is NaN. */
INLINE vec larger(vec a, vec b) {
    ints first = a > b;
    return (vec)((first & (ints)a) | (~first & (ints)b));
}

/* The maximum of a row. NaN may be skipped: it reaches the loss through the exponentials. The last vector overlaps
   the one before it where `count` is no multiple of LANES. */
static float largest(const float *z, int64_t count) {
    float most = z[0];
    if (count >= LANES) {
        vec m = load(z + count - LANES);
        for (int64_t k = 0; k + LANES < count; k += LANES) m = larger(load(z + k), m);
        for (int v = 0; v < LANES; v++) most = m[v] > most ? m[v] : most;
    } else
        for (int64_t k = 1; k < count; k++) most = z[k] > most ? z[k] : most;
    return most;
}

/* Return the loss of one row of logits z [classes] and write its derivative to d [classes].

   The maximum is subtracted before the exponentials, so that none overflows. A logit that is NaN or plus infinity
   makes the loss NaN, which the engine's checks then see; minus infinity is accepted and means probability zero. A
   label out of range picks no class, as in the JAX definition. */
static float entropy(const float *z, int64_t classes, int32_t label, float *d) {
    float most = largest(z, classes), total = 0;
    vec sums = {};
    for (int64_t k = 0; k < classes; k += LANES) {
        vec e = vexp(load_some(z + k, classes - k) - most);
        store_some(d + k, e, classes - k);
        sums += load_some(d + k, classes - k);
    }
    for (int v = 0; v < LANES; v++) total += sums[v];
    float share = 1 / total, loss = most + logf(total);
    for (int64_t k = 0; k < classes; k += LANES)
        store_some(d + k, share * load_some(d + k, classes - k), classes - k);
    if (label < 0 || label >= classes) return loss;
    d[label] -= 1;
    return loss - z[label];
}

/* XLA target "cross_entropy". Arguments: logits [n, classes], int32 labels [n]. Results: losses [n] and their
   derivatives [n, classes]. */
XLA_FFI_Error *fedmime_cross_entropy(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const float *z = argument(frame, 0)->data;
    const int32_t *labels = argument(frame, 1)->data;
    float *losses = result(frame, 0)->data, *d = result(frame, 1)->data;
    int64_t n = argument(frame, 0)->dims[0], classes = argument(frame, 0)->dims[1];
    for (int64_t i = 0; i < n; i++) losses[i] = entropy(z + i * classes, classes, labels[i], d + i * classes);
    return NULL;
}
