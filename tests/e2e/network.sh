# shellcheck shell=bash
# A network of hosts on this machine, for the end-to-end tests that cut it: each host is a network namespace, with a router between
# them all. Sourced after lib.sh; the test sets HOSTS (the nodes n0, n1, ... first) and NODES, and calls make_network.
#
# shellcheck disable=SC2034,SC2154 # used by the tests, given by lib.sh

PREFIX=polvo-$$
# Processes of the nodes, by number.
NODE_JOBS=()

need ip iproute2
need iptables iptables

# on HOST COMMAND...: in the host's namespace, which has this machine's file systems.
on() { nsenter "--net=/run/netns/$PREFIX-$1" "${@:2}"; }
# The host number N has the address 10.77.N.2, and the router between them all 10.77.N.1.
address() {
    local n
    for n in "${!HOSTS[@]}"; do [[ ${HOSTS[n]} != "$1" ]] || echo "10.77.$n.2"; done
}

make_hosts() {
    local n host
    ip netns add "$PREFIX-net" 2>"$WORK/netns" || return 1
    on net iptables -A FORWARD -p tcp -j REJECT --reject-with tcp-reset 2>"$WORK/netns" || return 1
    on net iptables -F FORWARD
    on net bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    for n in "${!HOSTS[@]}"; do
        host=${HOSTS[n]}
        ip netns add "$PREFIX-$host"
        ip -n "$PREFIX-net" link add "$host" type veth peer name eth0 netns "$PREFIX-$host"
        ip -n "$PREFIX-net" address add "10.77.$n.1/24" dev "$host"
        ip -n "$PREFIX-net" link set "$host" up
        ip -n "$PREFIX-$host" address add "10.77.$n.2/24" dev eth0
        ip -n "$PREFIX-$host" link set lo up
        ip -n "$PREFIX-$host" link set eth0 up
        ip -n "$PREFIX-$host" route add default via "10.77.$n.1"
    done
}

# make_network: the hosts; the test ends here, with a word, where they cannot be made.
make_network() {
    [[ $(id -u) == 0 ]] || fail "network namespaces need root"
    AFTER_UNMOUNT+=(take_network_away)
    make_hosts && return
    say "SKIPPED: no network namespaces or no netfilter here: $(cat "$WORK/netns")"
    finish
    exit 0
}

# After the mounts: the nodes, the namespaces, the pools.
take_network_away() {
    local job namespace
    for job in "${NODE_JOBS[@]}"; do kill "$job" 2>/dev/null || true; done
    for job in "${NODE_JOBS[@]}"; do
        timeout 20 tail --pid="$job" -f /dev/null || kill -9 "$job" || true
    done
    for namespace in "${HOSTS[@]}" net; do
        [[ ! -e /run/netns/$PREFIX-$namespace ]] || ip netns delete "$PREFIX-$namespace"
    done
    [[ -z ${pools:-} ]] || rm -rf "$pools"
}

# configure_cluster SIZE [LINE...]: $cluster and $pools, with a configuration for each node and for clients; each LINE goes to
# [cluster]. The limits are those that the function `timeouts` prints.
configure_cluster() {
    local size=$1 listed='' node other
    shift
    build
    POLVOD=${POLVOD:-$(dirname "$POLVO")/polvod}
    export POLVO
    cluster=$WORK/cluster pools=/dev/shm/$PREFIX
    mkdir "$cluster" "$cluster/mounts" "$pools" "$WORK/inside"
    CLUSTERS+=("$cluster")
    (
        umask 077
        echo "$(cat /proc/sys/kernel/random/uuid):$(head -c 32 /dev/urandom | base64 -w0)" >"$cluster/secret"
    )
    for ((node = 0; node < NODES; node++)); do listed+=${listed:+, }\"tcp://$(address "n$node"):7400\"; done
    {
        echo 'secret_file = "secret"'
        echo "addresses = [$listed]"
        timeouts
    } >"$cluster/cluster.toml"
    for ((node = 0; node < NODES; node++)); do
        mkdir "$cluster/node$node"
        {
            printf '[cluster]\nsecret_file = "../secret"\n'
            (($# == 0)) || printf '%s\n' "$@"
            for ((other = 0; other < NODES; other++)); do
                # the hosts are this machine, but shall not share its memory
                printf '[[cluster.nodes]]\nid = %d\nhost = "n%d"\n' "$other" "$other"
                printf 'addresses = ["tcp://%s:7400"]\n' "$(address "n$other")"
            done
            printf '[node]\nid = %d\npid_file = "polvod.pid"\n' "$node"
            printf '[pool]\npath = "%s/node%d.pool"\n' "$pools" "$node"
            printf '[timeouts]\n'
            timeouts
            ((node > 0)) || printf '[mount]\ndir = "%s/inside"\n' "$WORK"
        } >"$cluster/node$node/polvod.toml"
        "$POLVO" format --config "$cluster/node$node/polvod.toml" --size "$size" >"$WORK/format" 2>&1 ||
            fail "polvo format: $(cat "$WORK/format")"
    done
    MOUNTS+=("$WORK/inside")
}

# start_node N: on its host.
start_node() {
    local node=$1
    : >"$cluster/node$node/said"
    # not by `on`: the process is to be polvod itself
    nsenter "--net=/run/netns/$PREFIX-n$node" "$POLVOD" --config "$cluster/node$node/polvod.toml" \
        >"$cluster/node$node/said" 2>>"$cluster/node$node/polvod.log" &
    NODE_JOBS[node]=$!
}

all_ready() {
    local node
    for ((node = 0; node < NODES; node++)); do
        ! not_running "${NODE_JOBS[node]}" || fail "node $node: $(tail -n 20 "$cluster/node$node/polvod.log")"
        grep -q '^ready' "$cluster/node$node/said" || return 1
    done
}

# mount_on HOST [ARGUMENT...]: a mount of that host at $WORK/HOST.
mount_on() {
    local host=$1
    shift
    mkdir -p "$WORK/$host"
    [[ " ${MOUNTS[*]} " == *" $WORK/$host "* ]] || MOUNTS+=("$WORK/$host")
    on "$host" timeout 60 "$POLVO" mount --cluster-dir "$cluster" "$@" / "$WORK/$host" >"$WORK/mount.out" 2>&1
}

check_online_from_router() {
    on net timeout 300 "$POLVO" fsck --online --quiet --cluster-dir "$cluster" >"$WORK/fsck.out" 2>&1 ||
        fail "fsck --online: $(cat "$WORK/fsck.out")"
}

stop_nodes() {
    local node
    for node in "${!NODE_JOBS[@]}"; do kill "${NODE_JOBS[node]}"; done
    for node in "${!NODE_JOBS[@]}"; do wait_until 30 "the end of node $node" not_running "${NODE_JOBS[node]}"; done
}
check_pools() {
    timeout 300 "$POLVO" fsck --quiet "$pools"/node*.pool >"$WORK/fsck.out" 2>&1 || fail "fsck: $(cat "$WORK/fsck.out")"
}
# check_stopped: ends the nodes and checks their pools.
check_stopped() {
    stop_nodes
    check_pools
}
