# Only `make check` needs it: kept out of what the program is linked with.
sluice_program_cflags=$SLUICE_DEPS_CFLAGS
sluice_program_libs=$SLUICE_DEPS_LIBS
SLUICE_PACKAGE([cmocka], [cmocka], [optional], [pc:cmocka plain], [-lcmocka], [libcmocka-dev],
[#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>],
[assert_true(1);
fprintf(out, "found");])
SLUICE_DEPS_CFLAGS=$sluice_program_cflags
SLUICE_DEPS_LIBS=$sluice_program_libs
AM_CONDITIONAL([HAVE_CMOCKA], [test $sluice_have_cmocka = yes])
