#!/usr/bin/env bash
# Trains both examples with several numbers of replicas and seeds, and holds the means against what compressed training
# must reach: at most so many points below the dense run, more than so much compression, identical parameters.
#
#   examples/training.sh                          # digits and mnist, 1 2 3 4 8 replicas, seeds 0 1 2
#   REPLICAS="2 4" SEEDS="0" examples/training.sh digits
#
# Ends with 0 if all is reached.
set -euo pipefail
cd "$(dirname "$0")/.."

examples=${*:-digits mnist}
replicas=${REPLICAS:-1 2 3 4 8}
seeds=${SEEDS:-0 1 2}

for example in $examples; do
  case $example in
    digits | mnist) ;;
    *)
      echo "usage: $0 [digits] [mnist]" >&2
      exit 2
      ;;
  esac
done
cargo build --quiet --release --examples
programs=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/examples

# Points that the mean of the seeds may lie below dense's. Measured for 2, 4 and 8; in between, the next one's.
points() {
  if (($1 <= 2)); then echo 1; elif (($1 <= 4)); then echo 1.5; else echo 2; fi
}
compression() {
  if [ "$1" = digits ]; then echo 110; else echo 190; fi
}
# The value of a key of one line of JSON without nesting.
field() {
  sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" <<<"$1"
}

failed=0
format="%-8s %8s %9s %9s %8s %8s %8s %9s %10s  %s\n"
# shellcheck disable=SC2059
printf "$format" example replicas ours dense gap allowed density least-x steps/s verdict
for example in $examples; do
  for n in $replicas; do
    rows=""
    for seed in $seeds; do
      if ! output=$("$programs/$example" -n "$n" --seed "$seed" --json 2>&1); then
        printf '%s\n%s -n %s --seed %s failed\n' "$output" "$example" "$n" "$seed" >&2
        failed=1
        continue
      fi
      line=$(tail -n 1 <<<"$output")
      rows+="$(field "$line" accuracy) $(field "$line" dense_accuracy) $(field "$line" compression)"
      rows+=" $(field "$line" density) $(field "$line" identical) $(field "$line" steps_per_second)"$'\n'
    done
    [ -n "$rows" ] || continue
    awk -v example="$example" -v n="$n" -v allowed="$(points "$n")" -v needed="$(compression "$example")" \
      -v format="$format" '
      NF == 6 {
        runs++; ours += 100 * $1; dense += 100 * $2; density += $4; speed += $6
        if (runs == 1 || $3 < least) least = $3
        if ($5 != "true") different = 1
      }
      END {
        ours /= runs; dense /= runs; gap = ours - dense
        verdict = "reached"
        if (gap < -allowed) verdict = "NOT REACHED: accuracy"
        if (least <= needed) verdict = "NOT REACHED: compression (more than " needed ")"
        if (different) verdict = "NOT REACHED: parameters differ"
        printf format, example, n, sprintf("%.2f %%", ours), sprintf("%.2f %%", dense), sprintf("%+.2f", gap), \
          "-" allowed, sprintf("%.5f", density / runs), sprintf("%.1f", least), sprintf("%.0f", speed / runs), verdict
        exit verdict != "reached"
      }' <<<"$rows" || failed=1
  done
done
exit $failed
