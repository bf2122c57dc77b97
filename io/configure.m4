AS_CASE([$sluice_version_mpi],
  [*MPICH*|*MVAPICH*|Intel*], [sluice_variant=mpich],
  [sluice_variant=openmpi])
# A header and a library of different HDF5 versions abort at run time, and an HDF5 of another MPI
# library brings that library into the process. Both are refused here.
SLUICE_PACKAGE([hdf5], [parallel HDF5], [required],
[pc:hdf5-$sluice_variant pc:hdf5-mpi wrapper:h5pcc pc:hdf5 plain], [-lhdf5],
[libhdf5-$sluice_variant-dev],
[#include <hdf5.h>
#include "$srcdir/src/comm/mpi_version.h"
#ifndef H5_HAVE_PARALLEL
#error this HDF5 was built without MPI
#endif],
[unsigned major, minor, release;
if (H5get_libversion(&major, &minor, &release) < 0) return 1;
if (major != H5_VERS_MAJOR || minor != H5_VERS_MINOR || release != H5_VERS_RELEASE) return 1;
herr_t (*volatile collective)(hid_t, MPI_Comm, MPI_Info) = H5Pset_fapl_mpio;
if (!collective) return 1;
char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
int length;
if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return 1;
mpi_version_shorten(text);
if (strcmp(text, "$sluice_version_mpi")) return 1;
fprintf(out, "%u.%u.%u", major, minor, release);])

# For the split patterns of tokenizers that are not known by heart.
SLUICE_PACKAGE([pcre2], [PCRE2 with Unicode], [required], [pc:libpcre2-8 plain], [-lpcre2-8],
[libpcre2-dev],
[#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>],
[char text[64] = "";
int unicode = 0;
if (pcre2_config(PCRE2_CONFIG_UNICODE, &unicode) < 0 || !unicode) return 1;
if (pcre2_config(PCRE2_CONFIG_VERSION, text) < 0) return 1;
fprintf(out, "%.*s", (int)strcspn(text, " "), text);])

# The normal form NFC, which Qwen's tokenizers begin with.
SLUICE_PACKAGE([utf8proc], [utf8proc], [required], [pc:libutf8proc plain], [-lutf8proc],
[libutf8proc-dev],
[#include <utf8proc.h>],
[utf8proc_int32_t code = 0;
if (utf8proc_iterate((const utf8proc_uint8_t *)"\xC3\xA9", 2, &code) != 2 || code != 0xE9) return 1;
fprintf(out, "%s", utf8proc_version());])

# Whole JSON files: jansson 2.11 is the first one that tells the kind of an error.
SLUICE_PACKAGE([jansson], [jansson], [required], [pc:jansson plain], [-ljansson], [libjansson-dev],
[#include <jansson.h>
#if JANSSON_VERSION_HEX < 0x020b00
#error this jansson is older than 2.11
#endif],
[json_error_t error;
if (json_loads("[1, NaN]", JSON_REJECT_DUPLICATES, &error)) return 1;
if (json_error_code(&error) != json_error_invalid_syntax) return 1;
fprintf(out, "%s", JANSSON_VERSION);])

SLUICE_PACKAGE([zlib], [zlib], [required], [pc:zlib plain], [-lz], [zlib1g-dev],
[#include <zlib.h>],
[if (crc32(0, (const unsigned char *)"123456789", 9) != 0xcbf43926) return 1;
fprintf(out, "%s", zlibVersion());])

# Texts that are compressed.
SLUICE_PACKAGE([zstd], [Zstandard], [required], [pc:libzstd plain], [-lzstd], [libzstd-dev],
[#include <zstd.h>],
[char text[16];
if (ZSTD_isError(ZSTD_decompress(text, sizeof text, "\x28\xb5\x2f\xfd\0\x58\x19\0\0abc", 12)))
  return 1;
fprintf(out, "%s", ZSTD_versionString());])
