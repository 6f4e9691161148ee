/* CUPTI: refuses. torch's profiler then goes on without device activities and says so. */
#include "phantom.h"

enum { NOT_SUPPORTED = 27 };  /* CUptiResult */

API int cuptiSubscribe(UNUSED void **subscriber, UNUSED void *callback, UNUSED void *data) { return NOT_SUPPORTED; }
API int cuptiActivityRegisterCallbacks(UNUSED void *requested, UNUSED void *completed) { return NOT_SUPPORTED; }
API int cuptiActivityEnable(UNUSED int kind) { return NOT_SUPPORTED; }

API int cuptiGetResultString(UNUSED int result, const char **text) {
    *text = "not supported by the phantom GPU";
    return 0;
}

API int cuptiGetVersion(uint32_t *version) {
    *version = 130000;
    return 0;
}
