/* Memory for tables that are written row by row before they are read. */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vectors.h"

/* rets: an array that holds anything. The system is asked for large pages: small ones cost more than the writing. */
XLA_FFI_Error *fedmime_unfilled(XLA_FFI_CallFrame *frame) {
    if (asks_version(frame)) return NULL;
#ifdef MADV_HUGEPAGE
    uintptr_t page = sysconf(_SC_PAGESIZE), start = (uintptr_t)result(frame, 0)->data;
    uintptr_t end = (start + 4 * elements(result(frame, 0))) / page * page;
    start = (start + page - 1) / page * page;
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE); /* a wish: it may be refused */
#endif
    return NULL;
}
