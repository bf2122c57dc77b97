/* One product as cuBLASLt sees it. Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T.
 * So b is cuBLAS' first operand, and nothing is transposed in memory. */
#include "gpu/matmul_private.h"

void matmul_product_destroy(struct matmul_product *p)
{
  if (p->desc)
    (void)cublasLtMatmulDescDestroy(p->desc);
  if (p->a)
    (void)cublasLtMatrixLayoutDestroy(p->a);
  if (p->b)
    (void)cublasLtMatrixLayoutDestroy(p->b);
  if (p->c)
    (void)cublasLtMatrixLayoutDestroy(p->c);
  *p = (struct matmul_product){0};
}

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                          const void *value, size_t bytes)
{
  return cublasLtMatmulDescSetAttribute(desc, what, value, bytes);
}

/* The part of op's epilogue that the library does. */
static enum epilogue part_of(const struct matmul *op, enum matmul_way way)
{
  return way == MATMUL_WAY_ALL    ? op->epilogue
         : way == MATMUL_WAY_BIAS ? EPILOGUE_BIAS
                                  : EPILOGUE_NONE;
}

cublasStatus_t matmul_set_pointers(cublasLtMatmulDesc_t desc, const struct matmul *op,
                                   enum matmul_way way)
{
  const enum epilogue part = part_of(op, way);
  const bool bias = part == EPILOGUE_BIAS || part == EPILOGUE_BIAS_GELU,
             aux = part == EPILOGUE_BIAS_GELU || part == EPILOGUE_DGELU;
  cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
  if (bias)
    error = set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op->bias, sizeof op->bias);
  if (!error && aux)
    error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &op->aux, sizeof op->aux);
  if (error || !op->a_scale)
    return error;
  return set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &op->b_scale, sizeof op->b_scale)
             ?: set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &op->a_scale, sizeof op->a_scale);
}

static int32_t scale_mode(const struct device *device, bool blocks)
{
  if (device->fp8_tensor)
    return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  return blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
}

/* Fast accumulation is left off, because it adds up in less than fp32. Scales of groups are not
 * possible with it at all. */
static cublasStatus_t set_scales(cublasLtMatmulDesc_t desc, const struct device *device,
                                 const struct matmul *op)
{
  const int32_t a = scale_mode(device, op->a_blocks), b = scale_mode(device, !op->a_blocks);
  if (!op->a_scale)
    return CUBLAS_STATUS_SUCCESS;
  return set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &b, sizeof b)
             ?: set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &a, sizeof a);
}

static cublasStatus_t set_epilogue(cublasLtMatmulDesc_t desc, const struct matmul *op,
                                   enum matmul_way way)
{
  static const cublasLtEpilogue_t epilogues[] = {[EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
                                                 [EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                                 [EPILOGUE_BIAS_GELU] =
                                                     CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                                 [EPILOGUE_DGELU] = CUBLASLT_EPILOGUE_DGELU};
  const enum epilogue part = part_of(op, way);
  cublasStatus_t error =
      set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[part], sizeof epilogues[part]);
  if (!error && (part == EPILOGUE_BIAS_GELU || part == EPILOGUE_DGELU))
    error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &op->ldc, sizeof op->ldc);
  return error ?: matmul_set_pointers(desc, op, way);
}

enum status matmul_product_create(const struct device *device, const struct matmul *op,
                                  enum matmul_way way, struct matmul_product *out)
{
  const cudaDataType_t compute = device->model.compute == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F,
                       in = op->a_scale ? CUDA_R_8F_E4M3 : compute,
                       c = op->trans_a || op->gradient ? CUDA_R_32F : compute;
  const cublasOperation_t trans_a = op->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                          trans_b = op->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const uint64_t k = (uint64_t)op->k, m = (uint64_t)op->m, n = (uint64_t)op->n;
  struct matmul_product p = {0};
  const cublasStatus_t error =
      cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)
      ?: set(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans_a, sizeof trans_a)
      ?: set(p.desc, CUBLASLT_MATMUL_DESC_TRANSB, &trans_b, sizeof trans_b)
      ?: set_scales(p.desc, device, op)
      ?: set_epilogue(p.desc, op, way)
      ?: cublasLtMatrixLayoutCreate(&p.a, in, op->trans_b ? k : n, op->trans_b ? n : k, op->ldb)
      ?: cublasLtMatrixLayoutCreate(&p.b, in, op->trans_a ? m : k, op->trans_a ? k : m, op->lda)
      ?: cublasLtMatrixLayoutCreate(&p.c, c, n, m, op->ldc);
  if (error) {
    matmul_product_destroy(&p);
    return cublas_check(error, "describing a matrix product");
  }
  *out = p;
  return STATUS_OK;
}

void *matmul_target(const struct matmul *op, enum matmul_way way)
{
  return way != MATMUL_WAY_ALL && op->epilogue == EPILOGUE_BIAS_GELU ? op->aux : op->c;
}

cublasStatus_t matmul_run(struct lane *lane, const struct matmul *op,
                          const struct matmul_product *p, const cublasLtMatmulAlgo_t *algo, void *d)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  const float alpha = op->scale ? op->scale : 1, share = op->add_scale ? op->add_scale : 1;
  const float beta = op->accumulate || op->add ? share : 0;
  const void *c = op->add ? op->add : op->accumulate ? op->c : d;
  return cublasLtMatmul(cuda_device(lane->device)->blas, p->desc, &alpha, op->b, p->a, op->a, p->b,
                        &beta, c, p->c, d, p->c, algo, cuda->workspace, CUDA_WORKSPACE,
                        cuda->stream);
}

enum status matmul_finish(struct lane *lane, const struct matmul *op, enum matmul_way way, void *c)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (way == MATMUL_WAY_ALL || op->epilogue == EPILOGUE_NONE)
    return STATUS_OK;
  gpu_finish(&launch, op->m, op->n, op->ldc, op->epilogue, way == MATMUL_WAY_BIAS ? NULL : op->bias,
             op->aux, c);
  return cuda_check_launch("the end of a matrix product");
}
