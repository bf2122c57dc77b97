# --with-sphinx=guess|yes|no|PROGRAM: `make html`. A page must build with MyST, so a Sphinx without
# it counts as none.
AC_ARG_WITH([sphinx], [AS_HELP_STRING([--with-sphinx=guess|yes|no|PROGRAM],
  [sphinx-build with MyST, for make html, optional @<:@guess@:>@])], [], [with_sphinx=guess])
AS_CASE([$with_sphinx],
  [""], [AC_MSG_ERROR([--with-sphinx= is empty: use guess, yes, no or the program sphinx-build])],
  [no], [SPHINX_BUILD=],
  [guess|yes], [AC_PATH_PROG([SPHINX_BUILD], [sphinx-build])],
  [SPHINX_BUILD=$with_sphinx])
sluice_have_sphinx=no
AS_IF([test -n "$SPHINX_BUILD"], [
  AC_MSG_CHECKING([whether $SPHINX_BUILD builds Markdown])
  rm -rf conftest.sphinx
  mkdir conftest.sphinx
  AS_ECHO(["# Title"]) > conftest.sphinx/index.md
  AS_IF([$SPHINX_BUILD -q -C -D extensions=myst_parser -D root_doc=index -b dummy conftest.sphinx \
    conftest.sphinx/out >&AS_MESSAGE_LOG_FD 2>&1], [sluice_have_sphinx=yes])
  rm -rf conftest.sphinx
  AC_MSG_RESULT([$sluice_have_sphinx])])
AS_IF([test $sluice_have_sphinx = no], [
  SPHINX_BUILD=
  AS_CASE([$with_sphinx], [guess|no], [],
    [AC_MSG_ERROR([Sphinx with MyST was not found (config.log says more). \
Debian and Ubuntu: apt install python3-sphinx python3-myst-parser furo])])])
AC_SUBST([SPHINX_BUILD])
AM_CONDITIONAL([HAVE_SPHINX], [test $sluice_have_sphinx = yes])
