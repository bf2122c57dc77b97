# SLUICE_PACKAGE(NAME, WHAT, NEED, WAYS, PLAIN-LIBS, DEBIAN-PACKAGE, PROLOGUE, BODY)
# ---------------------------------------------------------------------------------
# --with-NAME=guess|yes|no|DIR, the same for every library. NEED is `required` or `optional`. WAYS
# lists the sources of flags, tried in this order: pc:MODULE (pkg-config), wrapper:COMPILER (a
# compiler wrapper that knows -show), plain (PLAIN-LIBS alone). NAME_CFLAGS and NAME_LIBS, if the
# user sets them, replace all of these. A DIR confines them to DIR.
#
# A way counts if a program of PROLOGUE and BODY links and runs. BODY writes the library's version
# to the stream `out` and returns non-zero to refuse the library. The libraries found earlier are on
# the command line too, so that libraries that cannot live in one process are noticed here.
#
# Sets NAME_CFLAGS, NAME_LIBS, sluice_have_NAME (yes|no), sluice_version_NAME, and
# sluice_lacks_NAME (a sentence with the words of #error if PROLOGUE refuses the library). Adds to
# SLUICE_DEPS_CFLAGS and SLUICE_DEPS_LIBS. If the library is optional, `guess` may end in "no".
# `yes` and a DIR never do.
AC_DEFUN([SLUICE_PACKAGE], [
AC_REQUIRE([SLUICE_PACKAGE_INIT])
m4_pushdef([SLUICE_name], m4_translit([[$1]], [-], [_]))
m4_pushdef([SLUICE_NAME], m4_toupper(m4_translit([[$1]], [-], [_])))
AC_ARG_VAR(SLUICE_NAME[_CFLAGS],
  [compiler flags for $2, in place of those that configure would find])
AC_ARG_VAR(SLUICE_NAME[_LIBS], [linker flags for $2, in place of those that configure would find])
AC_ARG_WITH([$1],
  [AS_HELP_STRING([--with-$1=guess|yes|DIR]m4_if([$3], [optional], [[|no]]),
     [$2, $3 @<:@guess@:>@])], [],
  [with_[]SLUICE_name=guess])
sluice_dir=
AS_CASE([$with_[]SLUICE_name],
  [""], [AC_MSG_ERROR([--with-$1= is empty: use guess, yes, \
m4_if([$3], [optional], [no, ])or the folder that $2 is installed in])],
  [no], [m4_if([$3], [required],
     [AC_MSG_ERROR([--with-$1=no: Sluice cannot be built without $2])])],
  [guess|yes], [],
  [AS_IF([test -d "$with_[]SLUICE_name"], [sluice_dir=$with_[]SLUICE_name],
     [AC_MSG_ERROR([--with-$1=$with_[]SLUICE_name: there is no such folder])])])
sluice_have_[]SLUICE_name=no
sluice_lacks_[]SLUICE_name=
sluice_version_[]SLUICE_name=
AS_IF([test "x$with_[]SLUICE_name" != xno], [
  AC_MSG_CHECKING([for $2])
  AS_IF([test -n "$SLUICE_NAME[]_CFLAGS$SLUICE_NAME[]_LIBS"],
    [sluice_ways=given], [sluice_ways="$4"])
  sluice_save_CFLAGS=$CFLAGS
  sluice_save_LIBS=$LIBS
  for sluice_way in $sluice_ways; do
    AS_IF([test "$sluice_way" = given],
      [sluice_cflags=$SLUICE_NAME[]_CFLAGS
       sluice_libs=$SLUICE_NAME[]_LIBS],
      [sluice_flags_of "$sluice_way" "$sluice_dir" "$5" || continue])
    CFLAGS="$sluice_save_CFLAGS $sluice_cflags $SLUICE_DEPS_CFLAGS"
    LIBS="$sluice_libs $SLUICE_DEPS_LIBS $sluice_save_LIBS"
    rm -f conftest.version
    AC_RUN_IFELSE([AC_LANG_PROGRAM([[#include <stdio.h>
$7]], [[FILE *out = fopen("conftest.version", "w");
if (!out) return 1;
$8
return fclose(out) != 0;]])], [sluice_have_[]SLUICE_name=yes],
      [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[$7]])], [],
         [sluice_reason=`sed -n 's/.*@%:@error //p' conftest.err | sed 1q`
          AS_IF([test -n "$sluice_reason"],
            [sluice_lacks_[]SLUICE_name="$2 is needed, and $sluice_reason"])])],
      [AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <stdio.h>
$7]], [[FILE *out = stdout;
$8]])], [sluice_have_[]SLUICE_name=yes])])
    AS_IF([test $sluice_have_[]SLUICE_name = yes], [break])
  done
  CFLAGS=$sluice_save_CFLAGS
  LIBS=$sluice_save_LIBS
  AS_IF([test $sluice_have_[]SLUICE_name = yes],
    [sluice_version_[]SLUICE_name=`cat conftest.version 2>/dev/null`
     rm -f conftest.version
     SLUICE_NAME[]_CFLAGS=$sluice_cflags
     SLUICE_NAME[]_LIBS=$sluice_libs
     SLUICE_DEPS_CFLAGS="$sluice_cflags $SLUICE_DEPS_CFLAGS"
     SLUICE_DEPS_LIBS="$sluice_libs $SLUICE_DEPS_LIBS"
     AC_MSG_RESULT([$sluice_version_[]SLUICE_name ($sluice_way)])],
    [AC_MSG_RESULT([no])
     AS_IF([test "$3,$with_[]SLUICE_name" != optional,guess],
       [AC_MSG_ERROR([${sluice_lacks_[]SLUICE_name:-$2 was not found, or a program that uses it \
does not link and run (config.log says which)}. Debian and Ubuntu: apt install $6. Elsewhere: \
 --with-$1=DIR, or SLUICE_NAME[]_CFLAGS and SLUICE_NAME[]_LIBS])])])])
AC_DEFINE_UNQUOTED([SLUICE_VERSION_]SLUICE_NAME, ["$sluice_version_[]SLUICE_name"],
  [version of $2, empty where it is not used])
m4_popdef([SLUICE_NAME])
m4_popdef([SLUICE_name])
])

# The shell function of SLUICE_PACKAGE. sluice_flags_of WAY DIR PLAIN-LIBS sets sluice_cflags and
# sluice_libs, and fails if WAY leads nowhere.
AC_DEFUN([SLUICE_PACKAGE_INIT], [
AC_REQUIRE([PKG_PROG_PKG_CONFIG])
SLUICE_DEPS_CFLAGS=
SLUICE_DEPS_LIBS=
AC_SUBST([SLUICE_DEPS_CFLAGS])
AC_SUBST([SLUICE_DEPS_LIBS])
sluice_multiarch=`$CC -print-multiarch 2>/dev/null`
sluice_flags_of () {
  sluice_what=${1#*:} sluice_cflags= sluice_libs= sluice_there= sluice_first=${3%% *}
  for sluice_lib in ${2:+"$[]2/lib/$sluice_multiarch" "$[]2/lib64" "$[]2/lib"}; do
    case $[]1 in
    pc:*) sluice_file=$sluice_lib/pkgconfig/$sluice_what.pc ;;
    *) sluice_file=$sluice_lib/lib${sluice_first#-l} ;;
    esac
    if test -z "$sluice_there"; then
      ls "$sluice_file"* >/dev/null 2>&1 && sluice_there=$sluice_lib
    fi
  done
  case $[]1 in
  pc:*)
    test -n "$PKG_CONFIG" || return 1
    test -z "$[]2" || test -n "$sluice_there" || return 1
    sluice_path=${sluice_there:+$sluice_there/pkgconfig:}$PKG_CONFIG_PATH
    sluice_cflags=`PKG_CONFIG_PATH=$sluice_path $PKG_CONFIG --cflags "$sluice_what" \
      2>&AS_MESSAGE_LOG_FD` || return 1
    sluice_libs=`PKG_CONFIG_PATH=$sluice_path $PKG_CONFIG --libs "$sluice_what" \
      2>&AS_MESSAGE_LOG_FD` || return 1 ;;
  wrapper:*)
    test -z "$[]2" || sluice_what=$[]2/bin/$sluice_what
    sluice_line=`$sluice_what -show 2>&AS_MESSAGE_LOG_FD` || return 1
    for sluice_word in $sluice_line; do
      case $sluice_word in
      -I* | -D*) sluice_cflags="$sluice_cflags $sluice_word" ;;
      -L* | -l* | -Wl,* | *.a | *.so) sluice_libs="$sluice_libs $sluice_word" ;;
      esac
    done ;;
  plain)
    sluice_libs=$[]3
    test -n "$[]2" || return 0
    test -n "$sluice_there" || return 1
    sluice_cflags=-I$[]2/include
    sluice_libs="-L$sluice_there -Wl,-rpath,$sluice_there $[]3" ;;
  esac
}
])

# SLUICE_C17: GNU C17, whatever the compiler's own default.
AC_DEFUN([SLUICE_C17], [
CC="$CC -std=gnu17"
AC_MSG_CHECKING([whether $CC understands GNU C17])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <stdatomic.h>
#if __STDC_VERSION__ < 201710L
#error not C17
#endif
_Static_assert(sizeof(int) == 4, "int");
static _Thread_local _Atomic int n;]], [[__auto_type m = atomic_fetch_add(&n, 1); return m;]])],
  [AC_MSG_RESULT([yes])],
  [AC_MSG_RESULT([no])
   AC_MSG_ERROR([Sluice needs a C17 compiler with GNU extensions, GCC 8 or Clang 7 at least: \
choose one with CC=])])
])

# SLUICE_DATA_MODEL: files and messages carry little-endian numbers as they lie in memory, and
# counts are 64-bit everywhere.
AC_DEFUN([SLUICE_DATA_MODEL], [
AC_C_BIGENDIAN([AC_MSG_ERROR([Sluice runs on little-endian machines only])])
AC_MSG_CHECKING([for 64-bit pointers, sizes and file offsets])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <stddef.h>
#include <sys/types.h>]],
[[_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(off_t) == 8, "64 bits");]])],
  [AC_MSG_RESULT([yes])],
  [AC_MSG_RESULT([no])
   AC_MSG_ERROR([Sluice runs on 64-bit machines only])])
])

# SLUICE_ENABLE_SANITIZER: --enable-sanitizer=address|undefined|thread|address,undefined
AC_DEFUN([SLUICE_ENABLE_SANITIZER], [
AC_ARG_ENABLE([sanitizer], [AS_HELP_STRING([--enable-sanitizer=LIST],
    [address, undefined, thread, or address,undefined: build and test under them])],
  [], [enable_sanitizer=no])
SANITIZER_CFLAGS=
AS_CASE([$enable_sanitizer],
  [no], [],
  [address|undefined|thread|address,undefined],
    [SANITIZER_CFLAGS="-fsanitize=$enable_sanitizer -fno-sanitize-recover=all"
     SANITIZER_CFLAGS="$SANITIZER_CFLAGS -fno-omit-frame-pointer"],
  [AC_MSG_ERROR([--enable-sanitizer=$enable_sanitizer: say address, undefined, thread, or \
address,undefined])])
AS_IF([test "$enable_sanitizer" != no], [
  AC_MSG_CHECKING([whether $CC can build with $SANITIZER_CFLAGS])
  sluice_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS $SANITIZER_CFLAGS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([this compiler or its run-time libraries lack -fsanitize=$enable_sanitizer])])
  CFLAGS=$sluice_save_CFLAGS])
AC_SUBST([SANITIZER_CFLAGS])
AC_SUBST([SANITIZER], [$enable_sanitizer])
])

# SLUICE_HARDENING
# ----------------
# The program checks its buffers and its stack, loads at any address, and keeps tables of functions
# read-only. Each flag for this is used if compiler and linker take it without a warning. The flags
# precede the user's CFLAGS and LDFLAGS, which can undo each of them. A _FORTIFY_SOURCE that the
# user or the compiler defines stays as it is. A build with a sanitizer has none of the flags.
AC_DEFUN([SLUICE_HARDENING], [
HARDENING_CFLAGS=
HARDENING_LDFLAGS=
NVCC_PIE=
sluice_save_CFLAGS=$CFLAGS
sluice_save_LDFLAGS=$LDFLAGS
# sluice_harden COMPILER-FLAG LINKER-FLAG: adds both if a program builds with them.
sluice_harden () {
  CFLAGS="$HARDENING_CFLAGS $[]1 $sluice_save_CFLAGS -Werror"
  LDFLAGS="$HARDENING_LDFLAGS $[]2 $sluice_save_LDFLAGS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <stdio.h>]], [[puts("");]])],
    [HARDENING_CFLAGS="$HARDENING_CFLAGS${1:+ $[]1}"
     HARDENING_LDFLAGS="$HARDENING_LDFLAGS${2:+ $[]2}"],
    [return 1])
}
AS_IF([test "$enable_sanitizer" = no], [
  AC_MSG_CHECKING([for hardening])
  sluice_harden -D_FORTIFY_SOURCE=3 "" || sluice_harden -D_FORTIFY_SOURCE=2 ""
  sluice_harden -fstack-protector-strong ""
  sluice_harden -fstack-clash-protection ""
  sluice_harden -fcf-protection ""
  sluice_harden -fPIE -pie && NVCC_PIE=-Xcompiler=-fPIE
  sluice_harden "" "-Wl,-z,relro -Wl,-z,now"
  CFLAGS=$sluice_save_CFLAGS
  LDFLAGS=$sluice_save_LDFLAGS
  HARDENING=`echo $HARDENING_CFLAGS $HARDENING_LDFLAGS`
  AC_MSG_RESULT([${HARDENING:-no}])],
  [HARDENING=])
AC_SUBST([HARDENING_CFLAGS])
AC_SUBST([HARDENING_LDFLAGS])
AC_SUBST([NVCC_PIE])
])

# SLUICE_ENABLE_WERROR: the warnings that the code is kept free of. --enable-werror makes them
# errors.
AC_DEFUN([SLUICE_ENABLE_WERROR], [
AC_ARG_ENABLE([werror],
  [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])], [], [enable_werror=no])
WARNING_CFLAGS="-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
-Wno-missing-field-initializers"
AS_CASE([$enable_werror],
  [yes], [WARNING_CFLAGS="$WARNING_CFLAGS -Werror"],
  [no], [],
  [AC_MSG_ERROR([--enable-werror=$enable_werror: say yes or no])])
AC_SUBST([WARNING_CFLAGS])
])
