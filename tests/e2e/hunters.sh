# shellcheck shell=bash
# Writers on three mounts and observers on all of them, who never see what is older than what was acknowledged before
# (workload/stale.py). Sourced after lib.sh; the test sets mounts (three), WATCHERS (observers on each), SEED, and may set LATE: so many
# more on each, which wait for up to two seconds before they look.
#
# shellcheck disable=SC2154 # given by the tests

board=$WORK/board

hunter() { timeout 900 python3 "$WORKLOAD/stale.py" "$@"; }

# start TOP FAULTS: writers and observers on all mounts.
start() {
    local n w watcher=0
    rm -f "$board"
    mkdir "${mounts[0]}/$1"
    hunter plant "${mounts[0]}/$1" 3
    JOBS=()
    for n in 0 1 2; do
        hunter write "${mounts[n]}/$1" "$n" $((SEED * 100 + n)) "$board" >"$WORK/writer.$n" 2>&1 &
        JOBS+=($!)
    done
    for n in 0 1 2; do
        for ((w = 0; w < WATCHERS + ${LATE:-0}; w++, watcher++)); do
            hunter watch "${mounts[n]}/$1" 3 $((SEED * 100 + 10 + watcher)) "$board" "$watcher" "$2" $((w < WATCHERS ? 0 : 2)) \
                >"$WORK/watcher.$watcher" 2>&1 &
            JOBS+=($!)
        done
    done
}

# what they have said, without what the shell says of their end
said() { cat "$WORK"/watcher.* "$WORK"/writer.* | grep -v "^$NAME: status" | grep -v '^[0-9]* ' | tail -n 6; }

# none of them has ended, as they do when they have found something
all_hunt() {
    local job
    for job in "${JOBS[@]}"; do
        ! not_running "$job" || fail "seed $SEED: $(said)"
    done
}

# stop NAME: ends them; their figure.
stop() {
    local job
    hunter stop "$board"
    for job in "${JOBS[@]}"; do wait "$job" || fail "seed $SEED: $(said)"; done
    JOBS=()
    figure "$1" "$(cat "$WORK"/watcher.* | awk '{ s += $1 } END { print s }') observations of $(cat "$WORK"/writer.* |
        awk '{ s += $1 } END { print s }') changes, none stale$(cat "$WORK"/watcher.* | sed 's/[ ,]/\n/g' |
        awk -F : 'NF == 2 { n[$1] += $2 } END { for (e in n) printf "; %s %d times", e, n[e] }')"
}
