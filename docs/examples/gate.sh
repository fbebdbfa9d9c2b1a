#!/bin/sh
# A gate for changes of a fleet, model or placement: gate.sh [--frozen] BASE_REF SCENARIO
#
# Fails (1) when the scenario as it stands is refused, (3) when a figure it needs is unknown; with --frozen also when any
# byte differs from the plan at BASE_REF. Annotations for GitHub go to stdout; a summary where GITHUB_STEP_SUMMARY says.
set -eu
usage() {
  echo "error: gate.sh: $1; write: gate.sh [--frozen] BASE_REF SCENARIO" >&2
  exit 2
}
frozen=no base='' scenario=''
for word in "$@"; do
  case $word in
    --frozen) frozen=yes ;;
    -*) usage "no such option: $word" ;;
    *) if [ -z "$base" ]; then base=$word; elif [ -z "$scenario" ]; then scenario=$word; else usage "too many words: $word"; fi ;;
  esac
done
[ -n "$scenario" ] || usage "a base or a scenario is missing"
git rev-parse --quiet --verify "$base^{commit}" > /dev/null || usage "$base is no commit here (a shallow clone lacks it)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/base"
git archive "$base" | tar -x -C "$work/base"

code=0
kvwaybill -q admit "$scenario" -o json > "$work/new.json" || code=$?
case $code in
  0) ;;
  1 | 3) kvwaybill -q admit "$scenario" -o github || exit "$code" ;;
  *) exit "$code" ;;
esac

code=0
kvwaybill -q admit "$work/base/$scenario" -o json > "$work/old.json" || code=$?
if [ "$code" -gt 1 ]; then
  echo "::notice::no plan of $scenario at $base to compare with"
  exit 0
fi
code=0
kvwaybill -q compare "$work/old.json" "$work/new.json" -o md > "$work/changes.md" || code=$?
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$work/changes.md" >> "$GITHUB_STEP_SUMMARY"
if [ "$frozen" = yes ] && [ "$code" -ne 0 ]; then
  kvwaybill -q compare "$work/old.json" "$work/new.json" -o github || exit "$code"
fi
