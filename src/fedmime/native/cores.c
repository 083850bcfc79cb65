/* Which core a device's thread is on, and which the host's is on while it works beside them. The system wakes the
   threads of two devices on one core now and then, and lets threads of one core take turns of some milliseconds: a
   small model's round is over by then, and all devices have waited for one. */
#ifdef __linux__
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "vectors.h"

#ifdef __linux__
enum { MOST = 8 };     /* threads that are sent away: with more cores the system finds an idle one more often */
enum { DEVICES = 256 }; /* that are told apart */
enum { GRACE = 50 * 1000, MOMENT = 1000 * 1000, WHILE = 2 * MOMENT, PATIENT = 10 * MOMENT, LONG = 1000 * MOMENT };
/* nanoseconds: for other devices to come; of the host's on a core; until a device looks again; in which others are looked
   for; until a device that does not look again counts as gone */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nobody reads which cores a thread may use while that changes */
static pid_t threads[MOST];                              /* that computed for a device before */
static int count;
static _Thread_local int known;
static int devices; /* that have cores for their own, as many as there are */
static struct {
    int core;
    int64_t when;  /* a thread of the device was last seen there; 0: it has none */
    int64_t loop;  /* the last one that it began; devices number those together */
    int64_t began; /* when that was */
} homes[DEVICES]; /* XLA goes on with a device's program on another thread now and then: a home is not the thread's */
static struct {
    pid_t thread;      /* 0 while it has nothing to do */
    int places, place; /* cores that devices have for their own; which of them it went to last */
    int core;          /* and which that is of all */
    int64_t when;
} host = {.core = -1};

static pid_t self(void) { return (pid_t)syscall(SYS_gettid); }

/* A thread goes to one of some cores at once, even if it only waits for its turn, and stays free to be moved. Numbers of
   threads that ended may belong to another process by now. */
static void move(pid_t thread, const cpu_set_t *there, const cpu_set_t *may) {
    if (thread && syscall(SYS_tgkill, getpid(), thread, 0)) return;
    if (!sched_setaffinity(thread, sizeof *there, there)) sched_setaffinity(thread, sizeof *may, may);
}

/* The place-th of some cores, and it alone; -1 without it. */
static int find(int place, const cpu_set_t *may, cpu_set_t *one) {
    int core = 0;
    while (core < CPU_SETSIZE && !(CPU_ISSET(core, may) && place-- == 0)) core++;
    if (core == CPU_SETSIZE) return -1;
    CPU_ZERO(one);
    CPU_SET(core, one);
    return core;
}

/* Where a device's thread is, if it has been seen lately; else -1. */
static int home_of(int device) {
    int64_t when = __atomic_load_n(&homes[device].when, __ATOMIC_ACQUIRE);
    return !when || nanoseconds() > when + LONG ? -1 : __atomic_load_n(&homes[device].core, __ATOMIC_RELAXED);
}

static int64_t loop_of(int device) { return __atomic_load_n(&homes[device].loop, __ATOMIC_RELAXED); }

/* A device begins the loop that others have begun, or if it has begun that before, the next. */
static void begin_loop(int own) {
    int64_t last = loop_of(own) + 1;
    for (int d = 0; d < devices; d++) last = loop_of(d) > last ? loop_of(d) : last;
    __atomic_store_n(&homes[own].loop, last, __ATOMIC_RELAXED);
    homes[own].began = nanoseconds();
}

/* Whether all devices have begun a device's loop, so that none of their threads waits to do so. One that has not for
   long has nothing to do in it. */
static int all_came(int own) {
    if (nanoseconds() > homes[own].began + PATIENT) return 1;
    for (int d = 0; d < devices; d++)
        if (loop_of(d) < loop_of(own)) return 0;
    return 1;
}

/* The calling thread stays on the core where it is, if no other device took it; else it goes to the one that its device
   had, or to a free one. There are as many devices as cores. */
static int go_home(int own, cpu_set_t *may, cpu_set_t *one) {
    if (pthread_mutex_lock(&lock)) return 0;
    int core = -1, here = sched_getcpu(), cores = sched_getaffinity(0, sizeof *may, may) ? 0 : CPU_COUNT(may);
    if (own < cores && cores <= DEVICES) {
        devices = cores;
        cpu_set_t open = *may;
        for (int d = 0, taken; d < devices; d++)
            if (d != own && (taken = home_of(d)) >= 0) CPU_CLR(taken, &open);
        int before = home_of(own);
        core = CPU_ISSET(here, &open) ? here : before >= 0 && CPU_ISSET(before, &open) ? before : find(0, &open, one);
    }
    if (core >= 0) {
        CPU_ZERO(one);
        CPU_SET(core, one);
        if (!known && count < MOST) threads[count] = self();
        if (!known && count <= MOST) count++;
        known = 1;
        __atomic_store_n(&homes[own].core, core, __ATOMIC_RELAXED);
        __atomic_store_n(&homes[own].when, nanoseconds(), __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock); /* whoever goes to a busy core has to wait there: not with the lock */
    if (core >= 0 && core != here) move(0, one, may);
    return core >= 0;
}

/* Other devices' threads may wait on the calling thread's core: they leave. */
static void send_away(const cpu_set_t *may, const cpu_set_t *one) {
    cpu_set_t others;
    CPU_XOR(&others, may, one);
    if (pthread_mutex_lock(&lock)) return;
    for (int i = 0; count <= MOST && i < count; i++)
        if (threads[i] != self()) move(threads[i], &others, may);
    pthread_mutex_unlock(&lock);
}

void leave_home(int device) {
    if (device >= 0 && device < DEVICES) __atomic_store_n(&homes[device].when, 0, __ATOMIC_RELAXED);
}

/* Before every trip: the system is asked at the first one, again after a while, and as long as another device has not
   come: its thread may wait on this one's core. All begin at nearly the same time, and to see the others come takes less
   than to send them away. */
static void settle(int own, int first) {
    cpu_set_t may, one;
    if (own < 0 || own >= DEVICES) return;
    if (first) {
        leave_home(own);
        begin_loop(own);
    }
    int64_t now = nanoseconds(), fresh = __atomic_load_n(&homes[own].when, __ATOMIC_RELAXED) + WHILE;
    if (home_of(own) == sched_getcpu() && now < fresh && all_came(own)) return;
    if (!go_home(own, &may, &one)) return;
    for (int64_t end = now + first * GRACE; !all_came(own);)
        if (nanoseconds() >= end) return send_away(&may, &one);
}

void let_host_work(void) {
    if (!__atomic_load_n(&host.thread, __ATOMIC_RELAXED)) return;
    if (__atomic_load_n(&host.core, __ATOMIC_RELAXED) == sched_getcpu()) sched_yield();
}

/* The calling thread begins to work beside devices with cores of their own, so many of them, or ends: 0. */
void fedmime_beside(int places) {
    if (pthread_mutex_lock(&lock)) return;
    if (places || host.thread == self()) {
        __atomic_store_n(&host.thread, places ? self() : 0, __ATOMIC_RELAXED);
        __atomic_store_n(&host.core, -1, __ATOMIC_RELAXED);
        host.places = places, host.when = 0;
    }
    pthread_mutex_unlock(&lock);
}

/* If the calling thread works beside devices and has been on one core for a moment, it goes on to another. */
void fedmime_give_way(void) {
    cpu_set_t may, one;
    int core = -1;
    if (__atomic_load_n(&host.thread, __ATOMIC_RELAXED) != self() || pthread_mutex_lock(&lock)) return;
    if (host.thread == self() && nanoseconds() > host.when + MOMENT) {
        host.place = (host.place + 1) % host.places;
        core = sched_getaffinity(0, sizeof may, &may) ? -1 : find(host.place, &may, &one);
        __atomic_store_n(&host.core, core, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    if (core < 0) return;
    move(0, &one, &may);
    host.when = nanoseconds();
}
#else
static void settle(int own, int first) { (void)own, (void)first; }
void leave_home(int device) { (void)device; }
void let_host_work(void) {}
void fedmime_beside(int places) { (void)places; }
void fedmime_give_way(void) {}
#endif

/* args: the number of a trip, that of a device which is to have a core for its own, or -1; rets: the first number, once
   the calling thread is on one. */
XLA_FFI_Error *fedmime_settled(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    int32_t trip = *(const int32_t *)argument(frame, 0)->data;
    sign_of_life();
    settle(*(const int32_t *)argument(frame, 1)->data, trip == 0);
    *(int32_t *)result(frame, 0)->data = trip;
    return NULL;
}
