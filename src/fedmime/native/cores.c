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
enum { MOST = 8 };    /* threads that are sent away: with more cores the system finds an idle one more often */
enum { PLACES = 256 }; /* cores that are told apart, by their places among those the process may use */
enum { GRACE = 50 * 1000, MOMENT = 1000 * 1000, WHILE = 2 * MOMENT, LONG = 1000 * MOMENT }; /* nanoseconds: for other
   devices to come; of the host's on a core; until a device looks again; until one that does not counts as gone */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nobody reads which cores a thread may use while that changes */
static pid_t threads[MOST];                              /* that computed for a device before */
static int count;
static int64_t taken[PLACES]; /* when a device's thread was last seen on the core that it took; 0: it is free */
static _Thread_local int known;
static _Thread_local struct {
    int place, core;
    int64_t when;
} home = {.place = -1}; /* of a device's thread */
static struct {
    pid_t thread;      /* 0 while it has nothing to do */
    int places, place; /* cores that devices have for their own; the one it went to last */
    int64_t when;
} host;

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

static int place_of(int core, const cpu_set_t *may) {
    int place = 0;
    for (int c = 0; c < core; c++) place += CPU_ISSET(c, may) != 0;
    return place;
}

static int is_free(int place) {
    int64_t when = __atomic_load_n(&taken[place], __ATOMIC_RELAXED);
    return !when || nanoseconds() > when + LONG;
}

/* Whether the threads of all devices are on cores that they took, so that none waits elsewhere. */
static int all_home(int places) {
    for (int p = 0; p < places; p++)
        if (is_free(p)) return 0;
    return 1;
}

/* The calling thread stays on the core where it is, if no other device's took it; else it goes to a free one, its own if
   there is none. */
static int go_home(int own, cpu_set_t *may, cpu_set_t *one) {
    if (pthread_mutex_lock(&lock)) return 0;
    int core = -1, here = sched_getcpu(), places = sched_getaffinity(0, sizeof *may, may) ? 0 : CPU_COUNT(may);
    if (own < places && places <= PLACES) {
        int place = home.place < 0 ? place_of(here, may) : home.place;
        if (home.place < 0 && !is_free(place))
            for (place = 0; place < places && !is_free(place);) place++;
        core = find(place < places ? place : own, may, one);
        home.place = place < places ? place : own;
    }
    if (core >= 0) {
        if (!known && count < MOST) threads[count] = self();
        if (!known && count <= MOST) count++;
        known = 1;
        if (core != here) move(0, one, may);
        home.core = core, home.when = nanoseconds();
        __atomic_store_n(&taken[home.place], home.when, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
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

void leave_home(void) {
    if (home.place >= 0) __atomic_store_n(&taken[home.place], 0, __ATOMIC_RELAXED);
    home.place = -1;
}

/* Before every trip: the system is asked at the first one, and again after a while. All devices begin at nearly the same
   time, and to see the others come takes less than to send them away. */
static void settle(int own, int first) {
    cpu_set_t may, one;
    if (first || own < 0) leave_home();
    if (own < 0) return;
    if (home.place >= 0 && home.core == sched_getcpu() && nanoseconds() < home.when + WHILE) return;
    if (!go_home(own, &may, &one)) return;
    int places = CPU_COUNT(&may);
    for (int64_t end = home.when + first * GRACE; !all_home(places);)
        if (nanoseconds() >= end) return send_away(&may, &one);
}

void let_host_work(void) {
    if (home.place < 0 || !__atomic_load_n(&host.thread, __ATOMIC_RELAXED)) return;
    if (__atomic_load_n(&host.place, __ATOMIC_RELAXED) == home.place) sched_yield();
}

/* The calling thread begins to work beside devices with cores of their own, so many of them, or ends: 0. */
void fedmime_beside(int places) {
    if (pthread_mutex_lock(&lock)) return;
    if (places || host.thread == self()) {
        __atomic_store_n(&host.thread, places ? self() : 0, __ATOMIC_RELAXED);
        host.places = places, host.when = 0;
    }
    pthread_mutex_unlock(&lock);
}

/* If the calling thread works beside devices and has been on one core for a moment, it goes on to another. */
void fedmime_give_way(void) {
    cpu_set_t may, one;
    if (__atomic_load_n(&host.thread, __ATOMIC_RELAXED) != self() || pthread_mutex_lock(&lock)) return;
    if (host.thread == self() && nanoseconds() > host.when + MOMENT) {
        __atomic_store_n(&host.place, (host.place + 1) % host.places, __ATOMIC_RELAXED);
        if (!sched_getaffinity(0, sizeof may, &may) && find(host.place, &may, &one) >= 0) move(0, &one, &may);
        host.when = nanoseconds();
    }
    pthread_mutex_unlock(&lock);
}
#else
static void settle(int place, int first) { (void)place, (void)first; }
void leave_home(void) {}
void let_host_work(void) {}
void fedmime_beside(int places) { (void)places; }
void fedmime_give_way(void) {}
#endif

/* args: the number of a trip, a core's place among all; rets: the number, once the calling thread is there, or alone on
   another. */
XLA_FFI_Error *fedmime_settled(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    int32_t trip = *(const int32_t *)argument(frame, 0)->data;
    sign_of_life();
    settle(*(const int32_t *)argument(frame, 1)->data, trip == 0);
    *(int32_t *)result(frame, 0)->data = trip;
    return NULL;
}
