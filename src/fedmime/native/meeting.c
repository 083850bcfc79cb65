/* Sums over devices. XLA puts a thread that waits for another device to sleep; to wake it takes longer than to add up a
   small model. Here it stays awake for a moment. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "vectors.h"

enum { PIECE = 1 << 13 };    /* entries that one device adds up at a time */
enum { AWAKE = 500 * 1000 }; /* nanoseconds */

int fedmime_patience = 6 * 3600; /* seconds without a sign of any device after which one that is waited for counts as lost */
#define LOST "fedmime: a device did not come to add up; its own error says why"
static int64_t signs;

void sign_of_life(void) { __atomic_add_fetch(&signs, 1, __ATOMIC_RELAXED); }

/* The devices that add something up in a run of a program. */
typedef struct Meeting {
    struct Meeting *next;
    int64_t run;
    int64_t expected, came, left;
    int64_t given_out, done; /* pieces */
    int lost;                /* somebody did not come: it cannot take place, and stays in the list */
    XLA_FFI_CallFrame *frames[];
} Meeting;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static Meeting *meetings;

INLINE void rest(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

INLINE int reached(const int64_t *counter, int64_t limit) {
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE) >= limit;
}

/* Some milliseconds, at most a second, or until something changes. */
static int slept(int64_t milliseconds) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += milliseconds * 1000000;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    return pthread_cond_timedwait(&change, &lock, &end) == ETIMEDOUT;
}

/* Until the others have raised a counter to a limit; they may fail to come. Seconds are counted, not read from a clock:
   a process that was stopped goes on. */
static void wait_for(Meeting *m, const int64_t *counter, int64_t limit) {
    for (int64_t end = nanoseconds() + AWAKE; nanoseconds() < end;)
        for (int i = 0; i < 50; i++) {
            if (reached(counter, limit)) return;
            rest();
        }
    pthread_mutex_lock(&lock);
    for (int64_t seen = -1, quiet = 0; !reached(counter, limit) && !m->lost; quiet += slept(1000)) {
        int64_t signs_now = __atomic_load_n(&signs, __ATOMIC_RELAXED);
        if (signs_now != seen) seen = signs_now, quiet = 0;
        if (counter == &m->came && quiet > fedmime_patience) m->lost = 1;
    }
    if (m->lost) pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

/* One more; the last one wakes those who sleep. */
static void raise_to(int64_t *counter, int64_t limit) {
    if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) < limit) return;
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

static int64_t at_work; /* devices that have begun programs in which they will meet, since the process began */

/* args: a whole number; rets: the same. The device that asks for it has begun. */
XLA_FFI_Error *fedmime_begun(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    *(int32_t *)result(frame, 0)->data = *(const int32_t *)argument(frame, 0)->data;
    pthread_mutex_lock(&lock);
    at_work++;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* How many there are, once there are so many; or after some milliseconds however many there are. */
int64_t fedmime_at_work(int64_t enough, int64_t milliseconds) {
    pthread_mutex_lock(&lock);
    while (at_work < enough && !slept(milliseconds)) {}
    int64_t count = at_work;
    pthread_mutex_unlock(&lock);
    return count;
}

/* The meeting of a run at which this device is not yet, or a new one. */
static Meeting *join(int64_t run, int64_t place, int64_t expected, XLA_FFI_CallFrame *frame) {
    pthread_mutex_lock(&lock);
    Meeting *m = meetings;
    while (m && !(m->run == run && !m->frames[place])) m = m->next;
    if (!m && (m = calloc(1, sizeof *m + expected * sizeof frame))) {
        m->run = run, m->expected = expected, m->next = meetings;
        meetings = m;
    }
    if (m) {
        m->frames[place] = frame;
        if (__atomic_add_fetch(&m->came, 1, __ATOMIC_ACQ_REL) == expected) pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&lock);
    return m;
}

static void leave(Meeting *m) {
    pthread_mutex_lock(&lock);
    if (++m->left == m->expected) {
        Meeting **link = &meetings;
        while (*link != m) link = &(*link)->next;
        *link = m->next;
        free(m);
    }
    pthread_mutex_unlock(&lock);
}

/* Where the terms of an array's sum begin: every device's own, then the rows of those that filled them. */
static int64_t find_terms(const Meeting *m, int64_t array, const void **terms) {
    XLA_FFI_CallFrame *first = m->frames[0];
    const int32_t *who = argument(first, 0)->data;
    int64_t arrays = first->rets.size, count = 0, row = bytes(result(first, array));
    for (int64_t d = 0; d < m->expected; d++) terms[count++] = argument(m->frames[d], array + 1)->data;
    for (int64_t r = 0; r < who[2]; r++)
        for (int64_t d = 0; d < m->expected; d++)
            if (((const int32_t *)argument(m->frames[d], arrays + 1)->data)[r]) {
                terms[count++] = (const char *)argument(m->frames[d], arrays + 2 + array)->data + r * row;
                break;
            }
    return count;
}

/* The sums of some entries of an array into the results of all devices; an array may be its own result. */
#define ADD_UP(number)                                                                                     \
    for (int64_t i = start; i < end; i++) {                                                                \
        number sum = ((const number *)terms[0])[i];                                                        \
        for (int64_t t = 1; t < count; t++) sum += ((const number *)terms[t])[i];                          \
        for (int64_t d = 0; d < m->expected; d++) ((number *)result(m->frames[d], array)->data)[i] = sum;  \
    }

static void add_up_floats(Meeting *m, int64_t array, const void **terms, int64_t count, int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i += LANES) {
        vec sum = load_some((const float *)terms[0] + i, end - i);
        for (int64_t t = 1; t < count; t++) sum += load_some((const float *)terms[t] + i, end - i);
        for (int64_t d = 0; d < m->expected; d++)
            store_some((float *)result(m->frames[d], array)->data + i, sum, end - i);
    }
}

static void add_up(Meeting *m, int64_t array, const void **terms, int64_t count, int64_t start, int64_t end) {
    switch (result(m->frames[0], array)->dtype) {
        case XLA_FFI_DataType_F32: add_up_floats(m, array, terms, count, start, end); break;
        case XLA_FFI_DataType_F64: ADD_UP(double) break;
        case XLA_FFI_DataType_S64: ADD_UP(int64_t) break;
        default: ADD_UP(int32_t) break;
    }
}

static int64_t pieces(int64_t size) { return (size + PIECE - 1) / PIECE; }

/* Every piece is added up by whoever comes to it first: a device that was put to sleep holds nobody up. */
static void share(Meeting *m, XLA_FFI_CallFrame *frame) {
    const int32_t *who = argument(frame, 0)->data;
    const void *terms[m->expected + who[2]];
    int64_t all_pieces = 0, before = 0;
    for (int64_t a = 0; a < frame->rets.size; a++) all_pieces += pieces(elements(result(frame, a)));
    int64_t piece = __atomic_fetch_add(&m->given_out, 1, __ATOMIC_RELAXED);
    for (int64_t a = 0; a < frame->rets.size; a++) {
        int64_t size = elements(result(frame, a)), own = pieces(size);
        int64_t count = piece < before + own ? find_terms(m, a, terms) : 0; /* nobody leaves before a piece is done */
        for (; piece < before + own; piece = __atomic_fetch_add(&m->given_out, 1, __ATOMIC_RELAXED)) {
            int64_t start = (piece - before) * PIECE;
            add_up(m, a, terms, count, start, start + PIECE < size ? start + PIECE : size);
            raise_to(&m->done, all_pieces);
        }
        before += own;
    }
    wait_for(m, &m->done, all_pieces);
}

/* args: [3] the device's place, how many there are, and how many rows of further terms; arrays of float32, float64, int32
   or int64, each of which may be its result; if there are rows, [rows] which of them this device filled, the first
   that did counts, and for each array those rows; anything after which this comes. rets: the arrays added up over the
   devices, in their order, and then the rows, in theirs. */
XLA_FFI_Error *fedmime_total(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    const int32_t *who = argument(frame, 0)->data;
    int64_t run;
    XLA_FFI_Error *error = find_run(frame, &run);
    if (error) return error;
    leave_home(who[0]);
    Meeting *m = join(run, who[0], who[1], frame);
    if (!m) return no_memory(frame);
    wait_for(m, &m->came, m->expected);
    if (m->lost) return failure(frame, LOST, XLA_FFI_Error_Code_ABORTED);
    share(m, frame);
    leave(m);
    return NULL;
}
