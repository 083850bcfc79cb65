/* Work that whichever device comes first takes over. */
#include <pthread.h>
#include <stdlib.h>

#include "vectors.h"

/* What is left in a run of a program. */
typedef struct Queue {
    struct Queue *next;
    int64_t run, taken, left; /* left: devices that found nothing more */
} Queue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Queue *queues;

/* The next piece of a run's work of so many, or -1 once none is left; -2 without memory. */
static int32_t take_one(int64_t run, int32_t pieces, int32_t devices) {
    pthread_mutex_lock(&lock);
    Queue **link = &queues;
    while (*link && (*link)->run != run) link = &(*link)->next;
    Queue *q = *link;
    if (!q && (q = *link = calloc(1, sizeof *q))) q->run = run;
    int32_t piece = !q ? -2 : q->taken < pieces ? (int32_t)q->taken++ : -1;
    if (piece == -1 && ++q->left == devices) {
        *link = q->next;
        free(q);
    }
    pthread_mutex_unlock(&lock);
    return piece;
}

/* args: [5] the number of a device's trip, how many pieces of work are its own, from which number on those are counted,
   how many there are for all, how many devices there are; and anything after which this comes. rets: the number of the
   piece to do in this trip, first its own, then one of those for all, which are counted from 0; -1 once none is left. */
XLA_FFI_Error *fedmime_next(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const int32_t *asked = argument(frame, 0)->data;
    int32_t *piece = result(frame, 0)->data;
    if (asked[0] < asked[1]) {
        *piece = asked[2] + asked[0];
        return NULL;
    }
    int64_t run;
    XLA_FFI_Error *error = find_run(frame, &run);
    if (error) return error;
    *piece = take_one(run, asked[3], asked[4]);
    return *piece == -2 ? no_memory(frame) : NULL;
}
