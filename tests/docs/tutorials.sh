#!/bin/sh
# Each tutorial, word by word. Oracle: the program, whose output must have each line that a tutorial
# shows, apart from numbers.
. "${top_srcdir:?}/tests/need.sh"
need python3
python3 -c 'import jinja2' 2> /dev/null || lack python3-jinja2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin"
ln -s "$SLUICE" "$dir/bin/sluice"
ln -s "$(cd "$top_srcdir" && pwd)/doc" "$(cd "$top_srcdir" && pwd)/inputs" "$dir"
PATH=$dir/bin:$PATH
OMPI_MCA_rmaps_base_oversubscribe=1
CUDA_VISIBLE_DEVICES=
export PATH OMPI_MCA_rmaps_base_oversubscribe CUDA_VISIBLE_DEVICES
tutorial="python3 $top_srcdir/tests/docs/tutorial.py"

for page in "$top_srcdir"/doc/tutorials/*.md; do
  case $page in */index.md) continue ;; esac
  $tutorial "$page" "$dir" || exit 1
done

# It fires on a command that fails, on output that is not there, on another step, on a line that is
# there once and shown twice, and on a key that is unknown.
printf '```sh\nfalse\n```\n' > "$dir/fails.md"
printf '```sh\necho one 2\n```\n\n```text\none two\n```\n' > "$dir/differs.md"
printf '```bash\nsluice train inputs/first.yaml run.stepz=1\n```\n' > "$dir/key.md"
printf '```sh\necho step 1 of 4\n```\n\n```text\nstep 2 of 4\n```\n' > "$dir/step.md"
printf '```sh\necho one 2\n```\n\n```text\none 2\none 3\n```\n' > "$dir/twice.md"
for page in fails differs step twice key; do
  if $tutorial "$dir/$page.md" "$dir" > "$dir/out" 2>&1; then
    echo "a wrong tutorial passes: $page" >&2
    exit 1
  fi
done
printf '```sh\necho one 2\n```\n\n```text\none 3\n```\n' > "$dir/passes.md"
$tutorial "$dir/passes.md" "$dir" || exit 1

# --write renews the numbers, and nothing else.
printf '```sh\necho "a 12  b 3 x c"\n```\n\n```text\na 1 b 2 ... c\n```\n' > "$dir/old.md"
printf '```sh\necho "a 12  b 3 x c"\n```\n\n```text\na 12 b 3 ... c\n```\n' > "$dir/new.md"
$tutorial "$dir/old.md" "$dir" --write && cmp "$dir/old.md" "$dir/new.md"
