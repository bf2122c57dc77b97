SLUICE_PACKAGE([blas], [OpenBLAS], [required], [pc:openblas plain], [-lopenblas], [libopenblas-dev],
[#include <cblas.h>
#include <string.h>],
[float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, c[4] = {0};
cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 1, a, 2, b, 2, 0, c, 2);
if (c[0] != 19 || c[1] != 22 || c[2] != 43 || c[3] != 50) return 1;
openblas_set_num_threads(1);
const char *text = openblas_get_config();
if (!strncmp(text, "OpenBLAS ", 9)) text += 9;
fprintf(out, "%.*s", (int)strcspn(text, " "), text);])
