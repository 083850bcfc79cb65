/* Which core a device's thread is on. The system wakes the threads of two devices on one core now and then, and needs
   some milliseconds to see it, in which another core is idle. */
#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "vectors.h"

#ifdef __linux__
enum { MOST = 64 };
static _Atomic pid_t threads[MOST]; /* that computed for a device before */
static _Thread_local int known;

static void remember(void) {
    static _Atomic int count;
    if (known++) return;
    int place = atomic_fetch_add(&count, 1);
    if (place < MOST) threads[place] = (pid_t)syscall(SYS_gettid);
}

/* A thread goes to one of some cores at once, even if it only waits for its turn, and stays free to be moved. Numbers of
   threads that ended may belong to another process by now. */
static void move(pid_t thread, const cpu_set_t *there, const cpu_set_t *may) {
    if (thread && syscall(SYS_tgkill, getpid(), thread, 0)) return;
    if (!sched_setaffinity(thread, sizeof *there, there)) sched_setaffinity(thread, sizeof *may, may);
}

/* The calling thread goes to the place-th of the cores it may use, if it is on another; other devices' threads that
   wait there go elsewhere. */
static void settle(int place) {
    cpu_set_t may, one, others;
    if (place < 0 || sched_getaffinity(0, sizeof may, &may)) return;
    int core = 0;
    while (core < CPU_SETSIZE && !(CPU_ISSET(core, &may) && place-- == 0)) core++;
    if (core == CPU_SETSIZE) return;
    remember();
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (core != sched_getcpu()) move(0, &one, &may);
    CPU_XOR(&others, &may, &one);
    pid_t own = (pid_t)syscall(SYS_gettid);
    for (int i = 0; i < MOST && threads[i]; i++)
        if (threads[i] != own) move(threads[i], &others, &may);
}
#else
static void settle(int place) { (void)place; }
#endif

/* args: a whole number, a core's place among all; rets: the number, once the calling thread is there. */
XLA_FFI_Error *fedmime_settled(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    settle(*(const int32_t *)argument(frame, 1)->data);
    memcpy(result(frame, 0)->data, argument(frame, 0)->data, 4);
    return NULL;
}
