#!/bin/sh
# Pages that are made of records: forecasts against published runs, and the campaigns. Oracles: the
# records in doc/measured; the program itself, which predicts every eighth row again; copies with a
# changed record, which must be noticed.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
scale=bench/scale.py reliability=tests/campaign/reliability.py
python3 "$top_srcdir/$scale" --check || die "a page or plot of scale is not made of its records"
python3 "$top_srcdir/$reliability" --check || die "reliability.md is not made of its records"
python3 "$top_srcdir/$scale" --sample "$SLUICE" || die "sluice plan predicts other steps"

mkdir -p doc bench tests/campaign
cp -r "$top_srcdir/doc/measured" "$top_srcdir/doc/measurements" "$top_srcdir/doc/reference" \
  "$top_srcdir/doc/images" doc
cp "$top_srcdir"/bench/*.py bench
cp "$top_srcdir/$reliability" tests/campaign
chmod -R u+w doc tests
python3 $scale --check || die "a copy differs"
sed -i '2s/"step_s": [0-9.]*/"step_s": 99/' doc/measured/scale-predicted.txt
fails 1 "differs" python3 $scale --check
fails 1 "is predicted otherwise" python3 $scale --sample "$SLUICE"
sed -i '2s/"outcome":"[^"]*"/"outcome":"lost"/' doc/measured/kills.txt
fails 1 "differs" python3 $reliability --check
