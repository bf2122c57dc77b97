#include <stdio.h>

#include "cmd/cmd.h"
#include "config.h"

void version_print(void)
{
  static const struct {
    const char *what, *version;
  } parts[] = {
      {"MPI", SLUICE_VERSION_MPI},      {"HDF5", SLUICE_VERSION_HDF5},     {"hwloc", SLUICE_VERSION_HWLOC}, {"OpenBLAS", SLUICE_VERSION_BLAS},
      {"libyaml", SLUICE_VERSION_YAML}, {"PCRE2", SLUICE_VERSION_PCRE2}, {"utf8proc", SLUICE_VERSION_UTF8PROC},
      {"zlib", SLUICE_VERSION_ZLIB},    {"CUDA", SLUICE_VERSION_CUDA},     {"NCCL", SLUICE_VERSION_NCCL},   {"cuDNN", SLUICE_VERSION_CUDNN},
      {"PAPI", SLUICE_VERSION_PAPI},
  };
  printf("sluice %s\n", PACKAGE_VERSION);
  printf("  %-10s %s\n", "configure", *SLUICE_CONFIGURE_ARGS ? SLUICE_CONFIGURE_ARGS : "(no arguments)");
  printf("  %-10s %s %s\n", "compiler", SLUICE_CC, SLUICE_CFLAGS);
  printf("  %-10s %s\n", "sanitizer", SLUICE_SANITIZER);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    printf("  %-10s %s\n", parts[i].what, *parts[i].version ? parts[i].version : "no");
}
