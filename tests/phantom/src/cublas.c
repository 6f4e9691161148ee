/* cuBLAS and cuBLASLt: products are timed by their size and not computed. The declarations follow cublas_v2.h and
 * cublasLt.h of CUDA 13, written out here because the small runtime wheel has no cuBLAS headers. */
#include "phantom.h"

#include <stdlib.h>
#include <string.h>

typedef int status;  /* cublasStatus_t */
enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
enum { TF32_MATH = 3 };                             /* cublasMath_t */
enum { COMPUTE_FAST_TF32 = 77 };                    /* cublasComputeType_t */

typedef struct {
    int math_mode, pointer_mode;
} *handle;

static enum rate rate_of(cudaDataType type, bool tf32) {
    switch (type) {
        case CUDA_R_16F: case CUDA_R_16BF: case CUDA_R_8I: case CUDA_R_8F_E4M3: case CUDA_R_8F_E5M2: return RATE_HALF;
        case CUDA_R_64F: case CUDA_C_64F: return RATE_DOUBLE;
        default: return tf32 ? RATE_TF32 : RATE_FLOAT;
    }
}

/* Every product begins here. */
static status run(double m, double n, double k, double batch, enum rate rate) {
    if (phantom_enter() != cudaSuccess)
        return EXECUTION_FAILED;
    int fault = phantom_gemm_fault();
    if (fault)
        return fault;
    phantom_launched();
    clock_matmul(2 * m * n * k * batch, rate);
    return SUCCESS;
}

/* ---- handles ---- */

static status new_handle(void **out, size_t size) {
    if (phantom_enter() != cudaSuccess)
        return NOT_INITIALIZED;
    *out = calloc(1, size);
    return *out ? SUCCESS : ALLOC_FAILED;
}

API status cublasCreate_v2(handle *out) { return new_handle((void **)out, sizeof **out); }
API status cublasDestroy_v2(handle h) {
    free(h);
    return SUCCESS;
}
API status cublasSetMathMode(handle h, int mode) {
    h->math_mode = mode;
    return SUCCESS;
}
API status cublasGetMathMode(handle h, int *mode) {
    *mode = h->math_mode;
    return SUCCESS;
}
API status cublasSetPointerMode_v2(handle h, int mode) {
    h->pointer_mode = mode;
    return SUCCESS;
}
API status cublasGetPointerMode_v2(handle h, int *mode) {
    *mode = h->pointer_mode;
    return SUCCESS;
}
/* All streams share one clock, workspaces are torch's own memory, and work is not divided among processors. */
API status cublasSetStream_v2(UNUSED handle h, UNUSED cudaStream_t stream) { return SUCCESS; }
API status cublasSetWorkspace_v2(UNUSED handle h, UNUSED void *workspace, UNUSED size_t size) { return SUCCESS; }
API status cublasSetSmCountTarget(UNUSED handle h, UNUSED int count) { return SUCCESS; }

/* ---- products ---- */

#define OPERANDS UNUSED const void *alpha, UNUSED const void *a, UNUSED int lda, UNUSED const void *b, UNUSED int ldb, \
                 UNUSED const void *beta, UNUSED void *c, UNUSED int ldc
#define STRIDED UNUSED const void *alpha, UNUSED const void *a, UNUSED int lda, UNUSED long long sa,                   \
                UNUSED const void *b, UNUSED int ldb, UNUSED long long sb, UNUSED const void *beta, UNUSED void *c,    \
                UNUSED int ldc, UNUSED long long sc
#define HEAD UNUSED handle h, UNUSED int ta, UNUSED int tb, int m, int n, int k

#define GEMM(letter, type)                                                                                             \
    API status cublas##letter##gemm_v2(HEAD, OPERANDS) {                                                               \
        return run(m, n, k, 1, rate_of(type, h->math_mode == TF32_MATH));                                              \
    }                                                                                                                  \
    API status cublas##letter##gemmStridedBatched(HEAD, STRIDED, int batch) {                                          \
        return run(m, n, k, batch, rate_of(type, h->math_mode == TF32_MATH));                                          \
    }                                                                                                                  \
    API status cublas##letter##gemmBatched(HEAD, OPERANDS, int batch) {                                                \
        return run(m, n, k, batch, rate_of(type, h->math_mode == TF32_MATH));                                          \
    }                                                                                                                  \
    API status cublas##letter##gemv_v2(UNUSED handle h, UNUSED int ta, int m, int n, OPERANDS) {                       \
        return run(m, n, 1, 1, rate_of(type, false));                                                                  \
    }                                                                                                                  \
    API status cublas##letter##dot_v2(UNUSED handle h, int n, UNUSED const void *x, UNUSED int incx,                   \
                                      UNUSED const void *y, UNUSED int incy, UNUSED void *result) {                    \
        return run(1, 1, n, 1, rate_of(type, false));                                                                  \
    }
GEMM(S, CUDA_R_32F)
GEMM(D, CUDA_R_64F)

API status cublasGemmEx(HEAD, UNUSED const void *alpha, UNUSED const void *a, cudaDataType a_type, UNUSED int lda,
                        UNUSED const void *b, UNUSED cudaDataType b_type, UNUSED int ldb, UNUSED const void *beta,
                        UNUSED void *c, UNUSED cudaDataType c_type, UNUSED int ldc, int compute, UNUSED int algorithm) {
    return run(m, n, k, 1, rate_of(a_type, compute == COMPUTE_FAST_TF32 || h->math_mode == TF32_MATH));
}

API status cublasSgemmEx(HEAD, UNUSED const void *alpha, UNUSED const void *a, cudaDataType a_type, UNUSED int lda,
                         UNUSED const void *b, UNUSED cudaDataType b_type, UNUSED int ldb, UNUSED const void *beta,
                         UNUSED void *c, UNUSED cudaDataType c_type, UNUSED int ldc) {
    return run(m, n, k, 1, rate_of(a_type, h->math_mode == TF32_MATH));
}

API status cublasGemmStridedBatchedEx(HEAD, UNUSED const void *alpha, UNUSED const void *a, cudaDataType a_type,
                                      UNUSED int lda, UNUSED long long sa, UNUSED const void *b,
                                      UNUSED cudaDataType b_type, UNUSED int ldb, UNUSED long long sb,
                                      UNUSED const void *beta, UNUSED void *c, UNUSED cudaDataType c_type,
                                      UNUSED int ldc, UNUSED long long sc, int batch, int compute,
                                      UNUSED int algorithm) {
    return run(m, n, k, batch, rate_of(a_type, compute == COMPUTE_FAST_TF32 || h->math_mode == TF32_MATH));
}

API status cublasDotEx(UNUSED handle h, int n, UNUSED const void *x, cudaDataType x_type, UNUSED int incx,
                       UNUSED const void *y, UNUSED cudaDataType y_type, UNUSED int incy, UNUSED void *result,
                       UNUSED cudaDataType result_type, UNUSED cudaDataType execution_type) {
    return run(1, 1, n, 1, rate_of(x_type, false));
}

/* ---- cuBLASLt ---- */

/* Torch may keep descriptors in opaque structs of cuBLASLt's sizes, but makes them with Create: any size will do. */
struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int32_t batch;
};
struct product {
    int compute;
    int32_t transposed_a;
};
enum { LAYOUT_BATCH_COUNT = 5 };  /* cublasLtMatrixLayoutAttribute_t */
enum { PRODUCT_TRANSA = 3 };      /* cublasLtMatmulDescAttributes_t */

struct heuristic {  /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace;
    status state;
    float waves;
    int reserved[4];
};

API size_t cublasLtGetVersion(void) { return 130000; }
API status cublasLtCreate(void **out) { return new_handle(out, 64); }

API status cublasLtMatmulDescCreate(struct product **out, int compute, UNUSED cudaDataType scale) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ALLOC_FAILED;
    (*out)->compute = compute;
    return SUCCESS;
}

/* Epilogues, scales and pointer modes say what to compute; only the transposition is needed for the size. */
API status cublasLtMatmulDescSetAttribute(struct product *product, int attribute, const void *value, size_t size) {
    if (attribute == PRODUCT_TRANSA && size == sizeof product->transposed_a)
        memcpy(&product->transposed_a, value, size);
    return SUCCESS;
}

API status cublasLtMatrixLayoutCreate(struct layout **out, cudaDataType type, uint64_t rows, uint64_t columns,
                                      UNUSED int64_t leading) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ALLOC_FAILED;
    **out = (struct layout){type, rows, columns, 1};
    return SUCCESS;
}

API status cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == LAYOUT_BATCH_COUNT && size == sizeof layout->batch)
        memcpy(&layout->batch, value, size);
    return SUCCESS;
}

/* Preferences bound a workspace; the phantom's algorithm needs none. */
API status cublasLtMatmulPreferenceCreate(void **out) {
    *out = calloc(1, 64);
    return *out ? SUCCESS : ALLOC_FAILED;
}
API status cublasLtMatmulPreferenceSetAttribute(UNUSED void *preference, UNUSED int attribute, UNUSED const void *value,
                                                UNUSED size_t size) {
    return SUCCESS;
}

#define DESTROY(name)             \
    API status name(void *made) { \
        free(made);               \
        return SUCCESS;           \
    }
DESTROY(cublasLtMatmulDescDestroy)
DESTROY(cublasLtMatmulPreferenceDestroy)
DESTROY(cublasLtMatrixLayoutDestroy)

/* One algorithm, without workspace. */
API status cublasLtMatmulAlgoGetHeuristic(UNUSED void *lt, UNUSED struct product *product, UNUSED struct layout *a,
                                          UNUSED struct layout *b, UNUSED struct layout *c, UNUSED struct layout *d,
                                          UNUSED void *preference, int wanted, struct heuristic *results, int *found) {
    *found = wanted > 0;
    if (wanted > 0)
        memset(results, 0, sizeof *results);
    return SUCCESS;
}

API status cublasLtMatmul(UNUSED void *lt, struct product *product, UNUSED const void *alpha, UNUSED const void *a,
                          struct layout *a_layout, UNUSED const void *b, UNUSED struct layout *b_layout,
                          UNUSED const void *beta, UNUSED const void *c, UNUSED struct layout *c_layout,
                          UNUSED void *d, struct layout *d_layout, UNUSED const void *algorithm,
                          UNUSED void *workspace, UNUSED size_t workspace_size, UNUSED cudaStream_t stream) {
    double inner = (double)(product->transposed_a ? a_layout->rows : a_layout->columns);
    return run((double)d_layout->rows, (double)d_layout->columns, inner, d_layout->batch,
               rate_of(a_layout->type, product->compute == COMPUTE_FAST_TF32));
}
