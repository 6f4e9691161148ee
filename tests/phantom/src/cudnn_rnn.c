/* cuDNN's recurrent networks and the dropout states they use: shapes of the weights are true (torch checks them),
 * workspace and reserve are of a plausible size, not cuDNN's. Projections (LSTM with proj_size) are not imitated. */
#include "cudnn.h"

#include <stdlib.h>

enum { LSTM = 2, GRU = 3 };         /* cudnnRNNMode_t; 0 and 1 are the plain cells */
enum { BIDIRECTIONAL = 1 };         /* cudnnDirectionMode_t */
enum { NO_BIAS = 0 };               /* cudnnRNNBiasMode_t */
enum { FORWARD_TRAINING = 1 };      /* cudnnForwardMode_t */
#define DROPOUT_STATES MIB

struct rnn {
    int gates, directions, layers, input, hidden, type;
    bool bias;
};
struct sequences {
    int length, batch;
};

#define MAKE(name, made)                                            \
    API status name(struct made **out) {                            \
        *out = calloc(1, sizeof **out);                             \
        return *out ? CUDNN_SUCCESS : CUDNN_HOST_ALLOCATION_FAILED; \
    }
#define DESTROY(name, made)               \
    API status name(struct made *old) {   \
        free(old);                        \
        return CUDNN_SUCCESS;             \
    }
MAKE(cudnnCreateRNNDescriptor, rnn)
DESTROY(cudnnDestroyRNNDescriptor, rnn)
MAKE(cudnnCreateRNNDataDescriptor, sequences)
DESTROY(cudnnDestroyRNNDataDescriptor, sequences)
struct dropout {
    float chance;
};
MAKE(cudnnCreateDropoutDescriptor, dropout)
DESTROY(cudnnDestroyDropoutDescriptor, dropout)

/* ---- dropout: random states that nothing reads ---- */

API status cudnnDropoutGetStatesSize(UNUSED void *handle, size_t *size) {
    *size = DROPOUT_STATES;
    return CUDNN_SUCCESS;
}
API status cudnnSetDropoutDescriptor(struct dropout *dropout, UNUSED void *handle, float chance, UNUSED void *states,
                                     UNUSED size_t size, UNUSED unsigned long long seed) {
    dropout->chance = chance;
    return cudnn_run(0, RATE_FLOAT);
}
API status cudnnRestoreDropoutDescriptor(struct dropout *dropout, UNUSED void *handle, float chance,
                                         UNUSED void *states, UNUSED size_t size, UNUSED unsigned long long seed) {
    dropout->chance = chance;
    return CUDNN_SUCCESS;
}

/* ---- shapes ---- */

API status cudnnSetRNNDescriptor_v8(struct rnn *rnn, UNUSED int algorithm, int cell, int bias, int direction,
                                    UNUSED int input_mode, int type, UNUSED int math_type, UNUSED int math, int input,
                                    int hidden, int projected, int layers, UNUSED void *dropout,
                                    UNUSED unsigned flags) {
    if (projected != hidden)
        phantom_missing("cudnnSetRNNDescriptor_v8 with a projection");
    *rnn = (struct rnn){
        .gates = cell == LSTM ? 4 : cell == GRU ? 3 : 1,
        .directions = direction == BIDIRECTIONAL ? 2 : 1,
        .layers = layers, .input = input, .hidden = hidden, .type = type, .bias = bias != NO_BIAS,
    };
    return CUDNN_SUCCESS;
}

API status cudnnSetRNNDataDescriptor(struct sequences *data, UNUSED int type, UNUSED int layout, int length, int batch,
                                     UNUSED int size, UNUSED const int *lengths, UNUSED void *padding) {
    *data = (struct sequences){length, batch};
    return CUDNN_SUCCESS;
}

/* A pseudo layer is one direction of one layer; above the first layer its input is all directions' output. */
static size_t input_of(const struct rnn *rnn, int pseudo_layer) {
    return pseudo_layer < rnn->directions ? (size_t)rnn->input : (size_t)rnn->hidden * (size_t)rnn->directions;
}

/* Elements of the matrices of a pseudo layer: input matrices of all gates, then recurrent ones. */
static size_t matrices_of(const struct rnn *rnn, int pseudo_layer) {
    return (size_t)rnn->gates * (size_t)rnn->hidden * (input_of(rnn, pseudo_layer) + (size_t)rnn->hidden);
}

static size_t all_matrices(const struct rnn *rnn) {
    size_t elements = 0;
    for (int i = 0; i < rnn->layers * rnn->directions; i++)
        elements += matrices_of(rnn, i);
    return elements;
}

static size_t biases_of(const struct rnn *rnn) {
    return rnn->bias ? 2 * (size_t)rnn->gates * (size_t)rnn->hidden : 0;
}

API status cudnnGetRNNWeightSpaceSize(UNUSED void *handle, const struct rnn *rnn, size_t *size) {
    size_t biases = biases_of(rnn) * (size_t)(rnn->layers * rnn->directions);
    *size = (all_matrices(rnn) + biases) * cudnn_width(rnn->type);
    return CUDNN_SUCCESS;
}

/* A caller who wants the matrix only brings NULL for the bias, and the other way round. */
static void describe(struct tensor *tensor, const struct rnn *rnn, int rows, int columns) {
    if (tensor)
        cudnn_set_tensor(tensor, rnn->type, 3, (int[]){1, rows, columns});
}

/* The weights lie so: the matrices of all pseudo layers, then all biases. */
API status cudnnGetRNNWeightParams(UNUSED void *handle, const struct rnn *rnn, int pseudo_layer, UNUSED size_t size,
                                   const void *weights, int gate, struct tensor *matrix, void **matrix_at,
                                   struct tensor *bias, void **bias_at) {
    bool recurrent = gate >= rnn->gates;
    int rows = rnn->hidden, columns = recurrent ? rnn->hidden : (int)input_of(rnn, pseudo_layer);
    size_t row_elements = (size_t)rows, offset = 0;
    for (int i = 0; i < pseudo_layer; i++)
        offset += matrices_of(rnn, i);
    if (recurrent)
        offset += (size_t)rnn->gates * row_elements * input_of(rnn, pseudo_layer);
    offset += (size_t)(gate % rnn->gates) * row_elements * (size_t)columns;
    if (matrix_at)
        *matrix_at = (char *)(uintptr_t)weights + offset * cudnn_width(rnn->type);
    describe(matrix, rnn, rows, columns);
    describe(bias, rnn, rows, 1);
    size_t before = all_matrices(rnn) + (size_t)pseudo_layer * biases_of(rnn) + (size_t)gate * row_elements;
    if (bias_at)
        *bias_at = rnn->bias ? (char *)(uintptr_t)weights + before * cudnn_width(rnn->type) : NULL;
    return CUDNN_SUCCESS;
}

/* The reserve keeps the gates and two states of every step for the backward pass. */
API status cudnnGetRNNTempSpaceSizes(UNUSED void *handle, const struct rnn *rnn, int mode,
                                     const struct sequences *data, size_t *workspace, size_t *reserve) {
    size_t step = (size_t)data->batch * (size_t)rnn->hidden * (size_t)rnn->gates * cudnn_width(rnn->type);
    size_t state = (size_t)data->batch * (size_t)rnn->hidden * 2 * cudnn_width(rnn->type);
    size_t steps = (size_t)data->length * (size_t)(rnn->layers * rnn->directions);
    if (workspace)
        *workspace = step * (size_t)data->length;
    if (reserve)
        *reserve = mode == FORWARD_TRAINING ? (step + state) * steps : 0;
    return CUDNN_SUCCESS;
}

/* ---- work; the arguments after x's descriptor do not change the cost and are left undeclared ---- */

static status work(const struct rnn *rnn, const struct sequences *x) {
    double steps = (double)x->length * x->batch;
    return cudnn_run(2 * steps * (double)all_matrices(rnn), cudnn_rate(rnn->type));
}

API status cudnnRNNForward(UNUSED void *handle, const struct rnn *rnn, UNUSED int mode, UNUSED const int *lengths,
                           const struct sequences *x) {
    return work(rnn, x);
}

/* Here the first data descriptor is y's: as long and as many. */
API status cudnnRNNBackwardData_v8(UNUSED void *handle, const struct rnn *rnn, UNUSED const int *lengths,
                                   const struct sequences *y) {
    return work(rnn, y);
}

API status cudnnRNNBackwardWeights_v8(UNUSED void *handle, const struct rnn *rnn, UNUSED int add,
                                      UNUSED const int *lengths, const struct sequences *x) {
    return work(rnn, x);
}
