#!/bin/sh
# bench/corpus.sh SLUICE OUT [PACKAGE...]: text for comparisons of training quality.
# It takes the files *.py, *.go, *.rs and *.hpp of four Debian packages, and of each PACKAGE. It
# also takes *.c of the archive in linux-source-6.1. The four packages are libpython3.11-stdlib,
# libpython3.11-minimal, libpython3.11-testsuite and golang-1.19-src, with 33 million tokens. With
# rust-src, libboost1.74-dev and linux-source-6.1 there are 327 million.
# OUT/text.jsonl has one file per document, OUT/tokenizer a BPE tokenizer of 50,257 tokens trained
# on it, and OUT/data the tokens. It needs Debian 12, network access, and python3. Not part of make
# check: it fetches 23 MB without a PACKAGE.
set -eu
test $# -ge 2 || { echo "usage: bench/corpus.sh SLUICE OUT [PACKAGE...]" >&2; exit 2; }
sluice=$1 out=$2
shift 2
rm -rf "$out/packages"
mkdir -p "$out/packages"
(
  cd "$out/packages"
  apt-get download -q libpython3.11-stdlib libpython3.11-minimal libpython3.11-testsuite \
    golang-1.19-src "$@"
  for package in *.deb; do dpkg-deb -x "$package" files; done
  for archive in files/usr/src/linux-source-*.tar.xz; do
    if test -f "$archive"; then tar -C files -xJf "$archive"; fi
  done
)
python3 - "$out" << 'END'
import json, os, sys
out = sys.argv[1]
names = sorted(os.path.join(folder, name)
               for folder, _, files in os.walk(out + "/packages/files") for name in files
               if name.endswith((".py", ".go", ".rs", ".hpp"))
               or name.endswith(".c") and "/linux-source-" in folder)
with open(out + "/text.jsonl", "w") as text:
    for name in names:
        if os.path.isfile(name) and not os.path.islink(name):
            body = open(name, "rb").read().decode("utf-8", "ignore")
            if "\0" not in body:
                text.write(json.dumps({"text": body}) + "\n")
END
rm -r "$out/packages"
"$sluice" tokenizer train "$out/tokenizer" input="$out/text.jsonl" vocab=50257 word_most=64
"$sluice" prepare "$out/text.jsonl" out="$out/data" tokenizer="$out/tokenizer" val=0.01
