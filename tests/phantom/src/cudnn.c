/* cuDNN: the graph ("backend") interface that torch's convolutions use, and batch normalisation.
 *
 * Every graph is accepted and has one engine without workspace; convolutions and matrix products are timed by their
 * size. The numbers are those of cudnn_graph.h of cuDNN 9, written out because the phantom is built without cuDNN. */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

#define MAJOR 9
#define MINOR 20

API size_t cudnnGetVersion(void) { return MAJOR * 10000 + MINOR * 100; }
API size_t cudnnGetCudartVersion(void) { return 13000; }

/* Major, minor and patch number are asked for as 0, 1 and 2. */
API status cudnnGetProperty(int property, int *value) {
    *value = property == 0 ? MAJOR : property == 1 ? MINOR : 0;
    return CUDNN_SUCCESS;
}

API const char *cudnnGetErrorString(int error) {
    switch (error) {
        case CUDNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
        case CUDNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
        case CUDNN_HOST_ALLOCATION_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
        case CUDNN_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
        default: return "CUDNN_UNKNOWN_STATUS";
    }
}

API void cudnnGetLastErrorString(char *text, size_t size) {
    if (size)
        *text = 0;  /* the phantom has nothing to add to its statuses */
}

/* ---- handles ---- */

struct cudnn {
    cudaStream_t stream;
};

API status cudnnCreate(struct cudnn **out) {
    if (phantom_enter() != cudaSuccess)
        return CUDNN_NOT_INITIALIZED;
    *out = calloc(1, sizeof **out);
    return *out ? CUDNN_SUCCESS : CUDNN_HOST_ALLOCATION_FAILED;
}
API status cudnnSetStream(struct cudnn *handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_SUCCESS;
}
API status cudnnGetStream(struct cudnn *handle, cudaStream_t *stream) {
    *stream = handle->stream;
    return CUDNN_SUCCESS;
}

status cudnn_run(double operations, enum rate rate) {
    if (phantom_enter() != cudaSuccess)
        return CUDNN_EXECUTION_FAILED;
    phantom_launched();
    clock_matmul(operations, rate);
    return CUDNN_SUCCESS;
}

enum rate cudnn_rate(int type) {
    return type == CUDNN_DOUBLE ? RATE_DOUBLE : type == CUDNN_HALF || type == CUDNN_BFLOAT16 ? RATE_HALF : RATE_FLOAT;
}

size_t cudnn_width(int type) { return type == CUDNN_DOUBLE ? 8 : type == CUDNN_HALF || type == CUDNN_BFLOAT16 ? 2 : 4; }

/* ---- graphs ---- */

enum kind {  /* cudnnBackendDescriptorType_t */
    CONVOLUTION_FORWARD = 10,
    CONVOLUTION_BACKWARD_FILTER = 11,
    CONVOLUTION_BACKWARD_DATA = 12,
    LAST_KIND = 43,
};
enum attribute {  /* cudnnBackendAttributeName_t */
    ENGINEHEUR_RESULTS = 202,
    ENGINECFG_ENGINE = 300,
    ENGINECFG_INTERMEDIATE_INFO = 301,
    ENGINECFG_KNOB_CHOICES = 302,
    ENGINECFG_WORKSPACE_SIZE = 303,
    ENGINECFG_SHARED_MEMORY_USED = 304,
    PLAN_WORKSPACE_SIZE = 402,
    PLAN_JSON_REPRESENTATION = 405,
    FORWARD_W = 703, FORWARD_Y = 705,
    DATA_W = 709, DATA_DY = 711,
    FILTER_DW = 715, FILTER_DY = 717,
    GRAPH_ENGINE_COUNT = 802,
    TENSOR_DATA_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    ENGINE_GLOBAL_INDEX = 1301,
    ENGINE_KNOB_INFO = 1302,
    ENGINE_NUMERICAL_NOTE = 1303,
    ENGINE_LAYOUT_INFO = 1304,
    ENGINE_BEHAVIOR_NOTE = 1305,
};
enum { TYPE_DESCRIPTOR = 15 };  /* cudnnBackendAttributeType_t */

/* A tensor keeps its sizes; everything made of other descriptors keeps what they cost together. So the cost of the
 * operations travels through graph, engine and configuration to the plan that is executed. */
struct descriptor {
    enum kind kind;
    int type;
    int64_t count;          /* elements of a tensor */
    int64_t first_extent;   /* of a filter: its output channels */
    double filter_taps;     /* of a convolution: filter elements for each output channel */
    double outputs;         /* of a convolution: elements of y or dy */
    double operations;
};

API status cudnnBackendCreateDescriptor(int kind, struct descriptor **out) {
    if (kind < 0 || kind > LAST_KIND)
        phantom_missing("cudnnBackendCreateDescriptor(%d)", kind);
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CUDNN_HOST_ALLOCATION_FAILED;
    (*out)->kind = (enum kind)kind;
    return CUDNN_SUCCESS;
}

API status cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
    free(descriptor);
    return CUDNN_SUCCESS;
}

API status cudnnBackendFinalize(UNUSED struct descriptor *descriptor) { return CUDNN_SUCCESS; }

static void set_tensor(struct descriptor *tensor, int attribute, int64_t count, const void *values) {
    if (attribute == TENSOR_DATA_TYPE)
        memcpy(&tensor->type, values, sizeof tensor->type);
    if (attribute == TENSOR_DIMENSIONS && count > 0) {
        const int64_t *extents = values;
        tensor->first_extent = extents[0];
        tensor->count = 1;
        for (int64_t i = 0; i < count; i++)
            tensor->count *= extents[i];
    }
}

static void add_part(struct descriptor *whole, int attribute, const struct descriptor *part) {
    if (attribute == FORWARD_W || attribute == DATA_W || attribute == FILTER_DW)
        whole->filter_taps = (double)part->count / (double)(part->first_extent ? part->first_extent : 1);
    if (attribute == FORWARD_Y || attribute == DATA_DY || attribute == FILTER_DY)
        whole->outputs = (double)part->count;
    if (whole->filter_taps && whole->outputs)
        whole->operations = 2 * whole->outputs * whole->filter_taps;
    else
        whole->operations += part->operations;
    if (part->type || !whole->type)
        whole->type = part->type;
}

/* Attributes describe; the few that decide the cost are kept. */
API status cudnnBackendSetAttribute(struct descriptor *descriptor, int attribute, int type, int64_t count,
                                    const void *values) {
    set_tensor(descriptor, attribute, count, values);
    if (type == TYPE_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++) {
            const struct descriptor *part = ((struct descriptor *const *)values)[i];
            if (part)
                add_part(descriptor, attribute, part);
        }
    return CUDNN_SUCCESS;
}

/* The caller brings an empty descriptor for the answer to be written into. */
static int64_t give(const struct descriptor *from, int64_t wanted, void *values) {
    if (wanted > 0 && values) {
        struct descriptor *to = *(struct descriptor **)values;
        to->operations = from->operations;
        to->type = from->type;
    }
    return 1;
}

static int64_t give_int64(int64_t value, int64_t wanted, void *values) {
    if (wanted > 0 && values)
        memcpy(values, &value, sizeof value);
    return 1;
}

static int64_t give_int32(int32_t value, int64_t wanted, void *values) {
    if (wanted > 0 && values)
        memcpy(values, &value, sizeof value);
    return 1;
}

API status cudnnBackendGetAttribute(const struct descriptor *descriptor, int attribute, UNUSED int type,
                                    int64_t wanted, int64_t *count, void *values) {
    int64_t found = 0;
    switch (attribute) {
        case ENGINEHEUR_RESULTS:
        case ENGINECFG_ENGINE: found = give(descriptor, wanted, values); break;
        case GRAPH_ENGINE_COUNT: found = give_int64(1, wanted, values); break;
        case ENGINECFG_WORKSPACE_SIZE:
        case PLAN_WORKSPACE_SIZE:
        case ENGINE_GLOBAL_INDEX: found = give_int64(0, wanted, values); break;
        case ENGINECFG_SHARED_MEMORY_USED: found = give_int32(0, wanted, values); break;
        /* The only engine has no knobs, notes or layouts, and no plan is serialised. */
        case ENGINECFG_INTERMEDIATE_INFO:
        case ENGINECFG_KNOB_CHOICES:
        case ENGINE_KNOB_INFO:
        case ENGINE_NUMERICAL_NOTE:
        case ENGINE_LAYOUT_INFO:
        case ENGINE_BEHAVIOR_NOTE:
        case PLAN_JSON_REPRESENTATION: break;
        default: phantom_missing("cudnnBackendGetAttribute(%d)", attribute);
    }
    if (count)
        *count = found;
    return CUDNN_SUCCESS;
}

API status cudnnBackendExecute(UNUSED struct cudnn *handle, struct descriptor *plan, UNUSED struct descriptor *pack) {
    return cudnn_run(plan->operations, cudnn_rate(plan->type));
}

/* ---- descriptors of the older interface ---- */

#define CREATE(name)                                                   \
    API status name(struct tensor **out) {                             \
        *out = calloc(1, sizeof **out);                                \
        return *out ? CUDNN_SUCCESS : CUDNN_HOST_ALLOCATION_FAILED;    \
    }
#define DESTROY(name)                  \
    API status name(struct tensor *t) { \
        free(t);                       \
        return CUDNN_SUCCESS;          \
    }
CREATE(cudnnCreateTensorDescriptor)
DESTROY(cudnnDestroyTensorDescriptor)
CREATE(cudnnCreateFilterDescriptor)
DESTROY(cudnnDestroyFilterDescriptor)
CREATE(cudnnCreateActivationDescriptor)
DESTROY(cudnnDestroyActivationDescriptor)

status cudnn_set_tensor(struct tensor *tensor, int type, int count, const int *extents) {
    if (count < 0 || count > MAX_EXTENTS)
        return CUDNN_BAD_PARAM;
    tensor->type = type;
    tensor->dimensions = count;
    tensor->elements = 1;
    for (int i = 0; i < count; i++) {
        tensor->extents[i] = extents[i];
        tensor->elements *= extents[i];
    }
    return CUDNN_SUCCESS;
}

API status cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *extents,
                                      UNUSED const int *strides) {
    return cudnn_set_tensor(tensor, type, count, extents);
}
API status cudnnSetFilterNdDescriptor(struct tensor *filter, int type, int format, int count, const int *extents) {
    filter->format = format;
    return cudnn_set_tensor(filter, type, count, extents);
}
/* Batch normalisation carries no activation of its own in torch: the descriptor is never looked at. */
API status cudnnSetActivationDescriptor(UNUSED struct tensor *activation, UNUSED int mode, UNUSED int nan,
                                        UNUSED double coefficient) {
    return CUDNN_SUCCESS;
}

/* Contiguous strides: the only tensors whose layout torch asks back are weights of the RNN. */
API status cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *count, int *extents,
                                      int *strides) {
    *type = tensor->type;
    *count = tensor->dimensions;
    int stride = 1;
    for (int i = tensor->dimensions; i-- > 0;) {
        if (i < wanted) {
            extents[i] = tensor->extents[i];
            strides[i] = stride;
        }
        stride *= tensor->extents[i];
    }
    return CUDNN_SUCCESS;
}

/* ---- batch normalisation: no workspace, no reserve (cuDNN asks for a little of both) ---- */

#define NORM UNUSED struct cudnn *handle, UNUSED int mode

API status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    NORM, UNUSED int fused, UNUSED void *x, UNUSED void *z, UNUSED void *y, UNUSED void *scale, UNUSED void *activation,
    size_t *size) {
    *size = 0;
    return CUDNN_SUCCESS;
}

API status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(NORM, UNUSED int fused, UNUSED void *activation,
                                                                UNUSED void *x, size_t *size) {
    *size = 0;
    return CUDNN_SUCCESS;
}

API status cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    NORM, UNUSED int fused, UNUSED void *x, UNUSED void *y, UNUSED void *dy, UNUSED void *dz, UNUSED void *dx,
    UNUSED void *scale, UNUSED void *activation, size_t *size) {
    *size = 0;
    return CUDNN_SUCCESS;
}

static status normalise(const struct tensor *x, double operations_each) {
    return cudnn_run((double)x->elements * operations_each, RATE_FLOAT);
}

/* The arguments after x do not change the cost and are left undeclared: the caller cleans up its own arguments. */
API status cudnnBatchNormalizationForwardTrainingEx(NORM, UNUSED int fused, UNUSED const void *alpha,
                                                    UNUSED const void *beta, const struct tensor *x) {
    return normalise(x, 10);
}

API status cudnnBatchNormalizationForwardInference(NORM, UNUSED const void *alpha, UNUSED const void *beta,
                                                   const struct tensor *x) {
    return normalise(x, 5);
}

API status cudnnBatchNormalizationBackwardEx(NORM, UNUSED int fused, UNUSED const void *alpha_data,
                                             UNUSED const void *beta_data, UNUSED const void *alpha_parameters,
                                             UNUSED const void *beta_parameters, const struct tensor *x) {
    return normalise(x, 20);
}
