/* Which core a device's thread is on. */
#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#endif

#include "vectors.h"

/* The calling thread goes to the place-th of the cores it may use, if it is on another, and stays free to be moved.
   The system wakes the threads of two devices on one core now and then, and needs some milliseconds to see it. */
static void settle(int place) {
#ifdef __linux__
    cpu_set_t may, one;
    if (place < 0 || sched_getaffinity(0, sizeof may, &may)) return;
    int core = 0;
    while (core < CPU_SETSIZE && !(CPU_ISSET(core, &may) && place-- == 0)) core++;
    if (core == CPU_SETSIZE || core == sched_getcpu()) return;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (!sched_setaffinity(0, sizeof one, &one)) sched_setaffinity(0, sizeof may, &may);
#endif
}

/* args: a whole number, a core's place among all; rets: the number, once the calling thread is there. */
XLA_FFI_Error *fedmime_settled(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
    settle(*(const int32_t *)argument(frame, 1)->data);
    memcpy(result(frame, 0)->data, argument(frame, 0)->data, 4);
    return NULL;
}
