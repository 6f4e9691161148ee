/* Streams and events. Everything runs at once in the calling thread, so a stream is only a name, waiting is never
 * needed, and all streams share one clock: work on two streams does not overlap. */
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>

#define EVENT_NS 500  /* so that two records never have the same time */

struct CUstream_st {
    int priority;
};
struct CUevent_st {
    bool timed, recorded;
    uint64_t ns;
};


/* NULL and the two small numbers are the default streams. */
static bool is_default(cudaStream_t stream) { return (uintptr_t)stream <= 2; }

static cudaError_t create_stream(cudaStream_t *stream, int priority) {
    ENTER();
    *stream = malloc(sizeof **stream);
    if (!*stream)
        return phantom_remember(cudaErrorMemoryAllocation);
    **stream = (struct CUstream_st){.priority = priority};
    return cudaSuccess;
}

API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return create_stream(stream, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, UNUSED unsigned flags) {
    return create_stream(stream, 0);
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, UNUSED unsigned flags, int priority) {
    return create_stream(stream, priority);
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER();
    if (is_default(stream))
        return phantom_remember(cudaErrorInvalidResourceHandle);
    free(stream);
    return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    ENTER();
    *priority = is_default(stream) ? 0 : stream->priority;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

/* Nothing is ever pending: these only report a poisoned context. */
API cudaError_t cudaStreamSynchronize(UNUSED cudaStream_t stream) {
    ENTER();
    return cudaSuccess;
}
API cudaError_t cudaStreamQuery(UNUSED cudaStream_t stream) {
    ENTER();
    return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize(void) {
    ENTER();
    return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(UNUSED cudaStream_t stream, UNUSED cudaEvent_t event, UNUSED unsigned flags) {
    ENTER();
    return cudaSuccess;
}

API cudaError_t cudaLaunchHostFunc(UNUSED cudaStream_t stream, cudaHostFn_t function, void *data) {
    ENTER();
    function(data);
    return cudaSuccess;
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data,
                                      UNUSED unsigned flags) {
    ENTER();
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

/* Capturing is not imitated (cudaStreamBeginCapture is a trap), so no stream is ever capturing. */
API cudaError_t cudaStreamIsCapturing(UNUSED cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    ENTER();
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(UNUSED cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, UNUSED cudaGraph_t *graph,
                                         UNUSED const cudaGraphNode_t **nodes, UNUSED const cudaGraphEdgeData **edges,
                                         size_t *count) {
    ENTER();
    *status = cudaStreamCaptureStatusNone;
    if (id)
        *id = 0;
    if (count)
        *count = 0;
    return cudaSuccess;
}

/* A mode that only matters to captures: the old one is given back. */
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return cudaSuccess;
}

/* ---- events: they read the virtual clock ---- */

static cudaError_t create_event(cudaEvent_t *event, unsigned flags) {
    ENTER();
    *event = malloc(sizeof **event);
    if (!*event)
        return phantom_remember(cudaErrorMemoryAllocation);
    **event = (struct CUevent_st){.timed = !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}

#undef cudaEventCreate
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return create_event(event, cudaEventDefault); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return create_event(event, flags); }

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER();
    free(event);
    return cudaSuccess;
}

static cudaError_t record(cudaEvent_t event) {
    ENTER();
    clock_tick(EVENT_NS);
    event->recorded = true;
    event->ns = clock_now_ns();
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t event, UNUSED cudaStream_t stream) { return record(event); }
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, UNUSED cudaStream_t stream, UNUSED unsigned flags) {
    return record(event);
}
API cudaError_t cudaEventQuery(UNUSED cudaEvent_t event) {
    ENTER();
    return cudaSuccess;
}
API cudaError_t cudaEventSynchronize(UNUSED cudaEvent_t event) {
    ENTER();
    return cudaSuccess;
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t last) {
    ENTER();
    if (!first->timed || !last->timed || !first->recorded || !last->recorded)
        return phantom_remember(cudaErrorInvalidResourceHandle);
    *ms = (float)(((double)last->ns - (double)first->ns) / 1e6);
    return cudaSuccess;
}
