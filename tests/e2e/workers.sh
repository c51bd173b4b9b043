# shellcheck shell=bash
# Workers that go on while nodes die and others take their place (workload/failover.py). Sourced after lib.sh; the test sets TOPS
# (the mounts that the workers are spread over), WORKERS, SEED, round, `cluster`, and has the functions is_whole (all nodes answer,
# and each region is served and has all its replicas; leaves what `polvo status` says in $WORK/status.out) and start_ended (starts
# nodes again that have ended because others had taken their place, and fails for others that have ended).
#
# shellcheck disable=SC2154 # given by the tests

GO_ON=30   # seconds within which every worker goes on after a fault
WHOLE=120  # seconds within which all copies are made
faults=$WORK/faults
operations=0
: >"$faults"

failover() { timeout 300 python3 "$WORKLOAD/failover.py" "$@"; }
note_fault() { echo "$1 $2 ${EPOCHREALTIME/,/.}" >>"$faults"; }

# What `polvo status` says of the replicas.
replicas() { grep -E '^(replicas|NOT SERVED):' "$WORK/status.out" | paste -sd' '; }
seconds_since() { awk -v a="${1/,/.}" -v b="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.1f", b - a }'; }
await_whole() {
    local deadline=$((SECONDS + WHOLE)) started=$EPOCHREALTIME
    until is_whole; do
        workers_run
        start_ended
        ((SECONDS < deadline)) || fail "$1: not all replicas are there within $WHOLE s: $(cat "$WORK/status.out")"
        sleep 0.2
    done
    say "$1: all replicas are there after $(seconds_since "$started") s"
}

log_of() { echo "$WORK/log.$round.$1"; }
top_of() { echo "${TOPS[$1 % ${#TOPS[@]}]}"; }
# lockers: their numbers, behind those of the other workers: one on each mount, and two at least.
lockers() { seq "$WORKERS" $((WORKERS + (${#TOPS[@]} > 1 ? ${#TOPS[@]} : 2) - 1)); }
start_workers() {
    local worker
    rm -f "$WORK/stop"
    JOBS=()
    for ((worker = 0; worker < WORKERS; worker++)); do
        python3 "$WORKLOAD/failover.py" run "$(top_of "$worker")/round$round" "$(log_of "$worker")" "$worker" \
            $((SEED * 1000 + round * 10 + worker)) "$WORK/stop" 2>"$WORK/worker.$worker" &
        JOBS+=($!)
    done
    for worker in $(lockers); do
        python3 "$WORKLOAD/failover.py" lock "$(top_of "$worker")/round$round" "$(log_of "$worker")" "$worker" \
            $((SEED * 1000 + round * 10 + worker)) "$WORK/stop" "$(lockers | paste -sd,)" 2>"$WORK/worker.$worker" &
        JOBS+=($!)
    done
    for worker in "${!JOBS[@]}"; do wait_until 60 "the start of worker $worker" test -s "$(log_of "$worker")"; done
}
# workers_run: none of them has failed.
workers_run() {
    local worker
    for worker in "${!JOBS[@]}"; do
        not_running "${JOBS[worker]}" || continue
        fail "round $round: a worker on $(top_of "$worker"): $(cat "$WORK/worker.$worker"); $(replicas)"
    done
}
returned() { grep -c '^<' "$(log_of "$1")" 2>/dev/null || true; }
# await_operations WHAT: every worker has an operation return from now on.
await_operations() {
    local worker before=() deadline=$((SECONDS + GO_ON))
    for worker in "${!JOBS[@]}"; do before+=("$(returned "$worker")"); done
    for worker in "${!JOBS[@]}"; do
        until (($(returned "$worker") > ${before[worker]:-0})); do
            workers_run
            start_ended
            ((SECONDS < deadline)) || fail "$1: the worker on $(top_of "$worker") does not go on within $GO_ON s: $(tail -n 1 "$(log_of "$worker")"); $(is_whole; replicas)"
            sleep 0.05
        done
    done
}
end_workers() {
    local worker
    touch "$WORK/stop"
    for worker in "${!JOBS[@]}"; do
        wait_until 60 "the end of worker $worker" not_running "${JOBS[worker]}"
        wait "${JOBS[worker]}" || fail "round $round: a worker on $(top_of "$worker"): $(cat "$WORK/worker.$worker")"
    done
    JOBS=()
}
# verify TOP...: what the workers of this round did is there, on each of these mounts.
verify() {
    local worker top said logs=()
    for worker in $(lockers); do
        logs+=("$(log_of "$worker")")
        operations=$((operations + $(returned "$worker")))
    done
    for top; do
        said=$(failover counted "$top/round$round" "${logs[@]}" 2>&1) || fail "round $round through $top: $said"
    done
    for ((worker = 0; worker < WORKERS; worker++)); do
        for top; do
            said=$(failover verify "$top/round$round" "$(log_of "$worker")" "$worker" "$faults" 2>&1) || fail "round $round through $top: $said"
        done
        operations=$((operations + $(returned "$worker")))
    done
}
# has_given_way NODE: its log ends with that others have taken its place.
has_given_way() {
    tail -n 1 "$cluster/node$1/polvod.log" | grep -q 'is served by another node since this one was away'
}
# show_pauses: their distribution; fails where some were longer than they are to be and STRICT=1 asks for that.
show_pauses() {
    local kind said long=0
    while IFS=: read -r kind said; do
        case $kind in
            long) long=$((long + 1)); say "a long pause:$said" ;;
            *) figure "pause around a $kind" "$said" ;;
        esac
    done < <(failover pauses "$faults" "$WORK"/log.*)
    ((long == 0)) || [[ ${STRICT:-} != 1 ]] || fail "$long pauses were too long"
}
