# What every script with soft-RoCE devices has. KINDS lists the services of the rails: ud, rc.

export COLUMNS=300 DOORBELL_WAIT=sleep DOORBELL_PATIENCE=60s DOORBELL_JOB_TIMEOUT=60s DOORBELL_DEADLINE=90s
whole=' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'

# rail_of DEVICE KIND: the name of the rail.
rail_of() { if [ "$2" = rc ]; then echo "verbs:$1:1"; else echo "verbs:$1:1:$2"; fi; }

has_flag_up() { ip link show "$1" | grep -q '[<,]UP[,>]'; }
is_listed() { ibv_devices | grep -q "$1"; }
now_ms() { local up; read -r up _ < /proc/uptime; up=${up/./}; echo $((10#$up * 10)); }

# measured WHAT COMMAND...: it has to end well; its output in $said.
measured() {
    local what=$1 status
    shift
    said=$(timeout 140 "$@" 2> client.err)
    status=$?
    if [ $status = 0 ]; then ok "$what: done"; else failed "$what: done" "exit $status: $(tail -n 4 client.err)"; fi
    tail -n 14 <<< "$said"
}
# verified WHAT COMMAND...: and every message came.
verified() {
    measured "$@"
    says "$1: every message came once, whole and in order" "$said" "$whole"
}

# What a rank has sent over a rail.
sent() { doorbell counters --name "$1.sent" 2> /dev/null | awk '{ for (at = 2; at <= NF; at++) if ($at ~ /^[0-9]+$/) sent += $at } END { print sent + 0 }'; }
# grows WHAT RAIL: its count grows within the time.
grows() {
    local what=$1 before until late
    before=$(sent "$2")
    until=$((SECONDS + 40))
    late=$((SECONDS + 10))
    while [ $(($(sent "$2") - before)) -lt 50 ]; do
        if [ $SECONDS -ge $until ] || has_ended $client; then
            failed "$what" "$before, then $(sent "$2") of $2; $(tail -n 2 client.log)"
            doorbell counters
            return
        fi
        if [ $SECONDS -ge $late ]; then
            echo "$what: not within 10 s"
            # What grows meanwhile shows what is tried.
            doorbell counters > counters.before
            sleep 3
            doorbell counters > counters.after
            diff counters.before counters.after
            cat counters.after
            doorbell why 0
            doorbell why 1
            rdma resource show qp
            for task in $(pidof doorbell); do cat /proc/$task/task/*/stack; done
            late=$until
        fi
        sleep 0.2
    done
    ok "$what"
}
running() { [ "$(sent "$1")" -gt 100 ] || has_ended $client; }

# ended WHAT: the client has ended well.
ended() {
    within 150 has_ended $client || kill -KILL $client
    if wait $client; then ok "$1: done"; else failed "$1: done" "exit $?: $(tail -n 4 client.log)"; fi
    tail -n 14 client.log
    says "$1: every message came once, whole and in order" "$(< client.log)" "$whole"
}

# is_free DEVICE: of queue pairs, it has the one of the kernel's own at most.
is_free() { rdma resource show | grep -qE "$1: .*qp [01] "; }

# No complaint is a completion with an error, which a connection has whose peer is gone, nor a queue pair that is refused: libfabric's
# own provider of verbs looks for the longest inline send by trying, in every program that loads libfabric. soft-RoCE writes lines for both.
complaints() {
    if dmesg | grep -vE 'make_send_cqe: non-flush error|rxe_create_qp: returned err = -22' | grep -E 'BUG:|WARNING:|rxe.*(cleanup failed|err)|unregister_netdevice'; then
        failed "the kernel has nothing to complain of" "see the lines above"
    else
        ok "the kernel has nothing to complain of"
    fi
}

declare -A services
# acm_serves HOST INTERFACE COMMAND...: a resolution service of that host, run by COMMAND, whose messages go over queue pairs.
acm_serves() {
    local host=$1 card=$2
    shift 2
    mkdir -p acm-$host
    printf 'doorbell_carrier ud\ntimeout 1000\n' > acm-$host/ibacm_opts.cfg
    : > acm-$host.log
    "$@" doorbell acm serve --socket /tmp/acm-$host.sock --nic $card --config acm-$host > acm-$host.log 2>&1 &
    services[$host]=$!
    check "acm, $host: it serves" within 20 grep -q '^serving at' acm-$host.log
}
acm_ends() {
    kill -TERM ${services[$1]}
    if wait ${services[$1]}; then ok "acm, $1: it ends"; else failed "acm, $1: it ends" "exit $?: $(tail -n 4 acm-$1.log)"; fi
}
