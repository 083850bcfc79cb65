/* Which core a device's thread is on. The system wakes the threads of two devices on one core now and then, and needs
   some milliseconds to see it, in which another core is idle. */
#ifdef __linux__
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "vectors.h"

#ifdef __linux__
enum { MOST = 8 }; /* threads that are sent away: with more cores the system finds an idle one more often */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nobody reads which cores a thread may use while that changes */
static pid_t threads[MOST];                              /* that computed for a device before */
static int count;
static _Thread_local int known;

/* A thread goes to one of some cores at once, even if it only waits for its turn, and stays free to be moved. Numbers of
   threads that ended may belong to another process by now. */
static void move(pid_t thread, const cpu_set_t *there, const cpu_set_t *may) {
    if (thread && syscall(SYS_tgkill, getpid(), thread, 0)) return;
    if (!sched_setaffinity(thread, sizeof *there, there)) sched_setaffinity(thread, sizeof *may, may);
}

/* The cores that the calling thread may use, and the place-th of them alone. */
static int find(int place, cpu_set_t *may, cpu_set_t *one) {
    if (sched_getaffinity(0, sizeof *may, may)) return -1;
    int core = 0;
    while (core < CPU_SETSIZE && !(CPU_ISSET(core, may) && place-- == 0)) core++;
    if (core == CPU_SETSIZE) return -1;
    CPU_ZERO(one);
    CPU_SET(core, one);
    return core;
}

/* The calling thread goes to a core, if it is on another; other devices' threads that wait there go elsewhere. */
static void settle_locked(int place) {
    cpu_set_t may, one, others;
    int core = find(place, &may, &one);
    if (core < 0) return;
    pid_t own = (pid_t)syscall(SYS_gettid);
    if (!known) {
        if (count < MOST) threads[count] = own;
        if (count <= MOST) count++;
        known = 1;
    }
    if (core != sched_getcpu()) move(0, &one, &may);
    CPU_XOR(&others, &may, &one);
    for (int i = 0; count <= MOST && i < count; i++)
        if (threads[i] != own) move(threads[i], &others, &may);
}

static void settle(int place) {
    if (place < 0 || pthread_mutex_lock(&lock)) return;
    settle_locked(place);
    pthread_mutex_unlock(&lock);
}

/* The calling thread, which is no device's, goes to a core. */
void fedmime_visit(int place) {
    cpu_set_t may, one;
    if (place < 0 || pthread_mutex_lock(&lock)) return;
    if (find(place, &may, &one) >= 0) move(0, &one, &may);
    pthread_mutex_unlock(&lock);
}
#else
static void settle(int place) { (void)place; }
void fedmime_visit(int place) { (void)place; }
#endif

/* args: a whole number, a core's place among all; rets: the number, once the calling thread is there. */
XLA_FFI_Error *fedmime_settled(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    settle(*(const int32_t *)argument(frame, 1)->data);
    memcpy(result(frame, 0)->data, argument(frame, 0)->data, 4);
    return NULL;
}
