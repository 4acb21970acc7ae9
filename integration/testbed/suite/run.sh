#!/usr/bin/env bash
# The end-to-end suite: every function `case_…` of the files beside this one, each in a namespace of its own.
#
#   run.sh [--only PATTERN] [--without PATTERN] [--repeat N] [--again] [--figures] [--list]
#
# PATTERN is a regular expression for names of files and cases. With --again a case that fails is tried once more, and if it
# passes then, the result says so. --figures prints the figures also after a part of the suite.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"

only=. without='^$' repeat=1 list='' again='' figures=''
while (($#)); do
  case $1 in
    --only) only=$2; shift 2 ;;
    --without) without=$2; shift 2 ;;
    --repeat) repeat=$2; shift 2 ;;
    --list) list=yes; shift ;;
    --again) again=yes; shift ;;
    --figures) figures=yes; shift ;;
    *) die "run.sh knows no $1" ;;
  esac
done
[[ $repeat =~ ^[1-9][0-9]*$ ]] || die "--repeat must be a number from 1, not $repeat"

# FILE CASE, a line each.
cases() {
  local file name
  for file in "$here"/[0-9]*.sh; do
    while read -r name; do
      local full
      full=$(basename "$file" .sh)/$name
      if [[ $full =~ $only && ! $full =~ $without ]]; then echo "$file $name"; fi
    done < <(sed -n 's/^\(case_[a-z0-9_]*\)() {.*/\1/p' "$file")
  done
}

mapfile -t all < <(cases)
((${#all[@]})) || die "no case has a name like $only"
if [ -n "$list" ]; then
  for entry in "${all[@]}"; do
    read -r file name <<<"$entry"
    echo "$(basename "$file" .sh): $name"
  done
  exit
fi

mkdir -p "$state/suite"
began=$SECONDS passed=0 failed=() second=()

# attempt FILE CASE ROUND: one case; its log is printed if it fails.
attempt() {
  local since=$SECONDS log=$state/suite/$2.log title=${2#case_}
  ((repeat == 1)) || title="$title, round $3"
  # A case that hangs is a case that fails. What it undoes may be the reboot of a node.
  if timeout --kill-after=300 900 "$here/case.sh" "$1" "$2" "$3" >"$log" 2>&1; then
    printf 'ok    %3d s  %s\n' $((SECONDS - since)) "${title//_/ }"
    return
  fi
  printf 'FAIL  %3d s  %s\n' $((SECONDS - since)) "${title//_/ }"
  tail -60 "$log" | sed 's/^/      | /'
  return 1
}

for ((round = 1; round <= repeat; round++)); do
  for entry in "${all[@]}"; do
    read -r file name <<<"$entry"
    if attempt "$file" "$name" "$round"; then
      ((++passed))
    elif [ -n "$again" ] && attempt "$file" "$name" "$round-again"; then
      ((++passed))
      second+=("$name")
    else
      failed+=("$name")
    fi
  done
done
((passed + ${#failed[@]})) || exit 1
if [ "$only" = . ] || [ -n "$figures" ]; then
  "$here/figures.sh" || failed+=(figures)
fi
if ((${#second[@]})); then echo "passed only on the second try: ${second[*]}"; fi
echo "suite result: $([ ${#failed[@]} = 0 ] && echo ok || echo FAILED). $passed passed; ${#failed[@]} failed; finished in $((SECONDS - began)) s"
[ ${#failed[@]} = 0 ]
