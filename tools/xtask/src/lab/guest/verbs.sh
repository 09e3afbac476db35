# Rails over datagram queue pairs of a soft-RoCE device of one guest, whose two ranks reach each other inside the
# device: beside the library's own tools, with each layer, failing over to the kernel's sockets while the
# interface below goes and comes, and while the device is taken away.

export COLUMNS=300 DOORBELL_WAIT=sleep DOORBELL_PATIENCE=60s DOORBELL_JOB_TIMEOUT=60s DOORBELL_DEADLINE=90s
rail=verbs:rxe0:1:ud
whole=' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
held='rxe0: .*qp 1 '

has_flag_up() { ip link show "$1" | grep -q '[<,]UP[,>]'; }
is_listed() { ibv_devices | grep -q rxe0; }
made() {
    check "a soft-RoCE device on the interface" rdma link add rxe0 type rxe netdev eth0
    check "the library lists it" within 10 is_listed
}

now_ms() { local up; read -r up _ < /proc/uptime; up=${up/./}; echo $((${up#0} * 10)); }

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

# The library's own tools, over the same device.
based() {
    ibv_devices
    ib_send_lat -c UD -d rxe0 -x 1 -s 64 -n 500 > server.log 2>&1 &
    server=$!
    sleep 2
    said=$(timeout 60 ib_send_lat -c UD -d rxe0 -x 1 -s 64 -n 500 127.0.0.1 2>&1)
    if [ $? = 0 ]; then ok "base: ib_send_lat -c UD"; else failed "base: ib_send_lat -c UD" "$(tail -n 3 <<< "$said")"; fi
    tail -n 3 <<< "$said"
    within 10 has_ended $server || kill $server
    wait $server 2> /dev/null
}

told() {
    said=$(doorbell info 2>&1)
    grep -A 14 '^verbs' <<< "$said"
    says "info: the port, usable" "$said" "^$rail +usable"
}

# The promises of datagrams, over the port itself.
contract() {
    said=$(timeout 200 verbs-lab conformance $rail 2> marks)
    local status=$? line
    cat marks
    while read -r line; do
        case $line in
            "holds "*) ok "conformance: ${line#holds }" ;;
            "broken "*) failed "conformance: ${line#broken }" "$(tail -n 3 marks)" ;;
        esac
    done <<< "$said"
    if [ $status = 0 ]; then ok "conformance: all of it"; else failed "conformance: all of it" "exit $status: $(tail -n 3 marks)"; fi
}

# A batch of sixteen is one system call, and receiving is none.
calls() {
    if said=$(timeout 120 strace -f -o calls verbs-lab exchange $rail 2> marks); then
        ok "calls: every frame came whole"
    else
        failed "calls: every frame came whole" "exit $?: $said $(tail -n 3 marks)"
    fi
    local writes others
    sed -n '/the steady state begins/,/the steady state ends/p' calls | sed '1d;$d' > steady
    sed -E 's/^[0-9]+ +//; s/\(.*//' steady | sort | uniq -c
    writes=$(grep -c ' write(' steady)
    others=$(grep -vc ' write(' steady)
    says "calls: it came to its end" "$(< marks)" 'ends: 8000 frames'
    if [ "$writes" -le 500 ]; then ok "calls: $writes writes for 8000 frames"; else failed "calls" "$writes writes: $(head -n 20 steady)"; fi
    # Four turns of two rails, each with one look at its port.
    if [ "$others" -le 1000 ]; then ok "calls: $others others in eight turns"; else failed "calls" "$others others"; fi
}

carried() {
    verified "pingpong" doorbell pingpong --rail $rail --verify --sizes 8,64,1400,8Ki,64Ki,1Mi --samples 30 --no-reference
    says "pingpong: over the port" "$said" "^rail  *$rail"
    verified "stream" doorbell stream --rail $rail --verify --sizes 64,4Ki,256Ki --seconds 3 --no-reference
    verified "rate" doorbell rate --rail $rail --verify --sizes 8,64 --seconds 3 --no-reference
    local layer ranks
    for layer in portals am; do
        verified "$layer" doorbell pingpong --layer $layer --rail $rail --verify --sizes 8,1400,64Ki --samples 20 --no-reference
    done
    for ranks in 2 4; do
        verified "run -n $ranks" doorbell run -n $ranks --rail $rail --bind none -- doorbell pingpong --verify --sizes 64,8Ki --samples 20 --no-reference
    done
}

# What a rank has sent over the port, and over the kernel's sockets.
sent() { doorbell counters --name "$1.sent" | awk '{ for (at = 2; at <= NF; at++) if ($at ~ /^[0-9]+$/) sent += $at } END { print sent + 0 }'; }
# grows WHAT RAIL: its count grows within the time.
grows() {
    local what=$1 before until
    before=$(sent "$2")
    until=$((SECONDS + 40))
    while [ $(($(sent "$2") - before)) -lt 50 ]; do
        if [ $SECONDS -ge $until ] || ! kill -0 $client 2> /dev/null; then
            failed "$what" "$before, then $(sent "$2"); $(tail -n 2 client.log)"
            return
        fi
        sleep 0.2
    done
    ok "$what"
}

streams() { timeout 170 doorbell stream --rail $rail --rail udp:lo --verify --sizes 4Ki --seconds "$1" --no-reference > client.log 2>&1 & client=$!; }
# ended WHAT: the stream has ended well.
ended() {
    if wait $client; then ok "$1: done"; else failed "$1: done" "exit $?: $(tail -n 4 client.log)"; fi
    tail -n 14 client.log
    says "$1: every message came once, whole and in order" "$(< client.log)" "$whole"
}

# The interface goes and comes: the messages go on over the kernel's sockets, and come back.
failover() {
    local before after
    streams 20
    within 30 running
    grows "failover: over the port" $rail
    doorbell counters --name $rail
    doorbell counters --name udp:lo
    ip link set eth0 down
    grows "failover: the interface is down, over the kernel's sockets" udp:lo
    sleep 1
    before=$(sent $rail)
    sleep 2
    after=$(sent $rail)
    if [ $((after - before)) -lt 20 ]; then ok "failover: the port is quiet"; else failed "failover: the port is quiet" "$before, then $after"; fi
    ip link set eth0 up
    grows "failover: the interface is up, over the port again" $rail
    doorbell counters --name $rail
    ended failover
}
running() { [ "$(sent $rail)" -gt 100 ]; }

# A process that is killed leaves nothing.
killed() {
    streams 60
    within 30 running
    rdma resource
    kill -KILL $(pidof doorbell)
    wait $client 2> /dev/null
    check "killed: nothing is left" within 5 is_free
    rdma resource
    verified "killed: the next one" doorbell pingpong --rail $rail --verify --sizes 64 --samples 20 --no-reference
}
# Of queue pairs, the device has the one of the kernel's own at most.
is_free() { rdma resource show | grep -qE "$held"; }

# The device is deleted under load: the command ends within two seconds, and the messages go on.
taken() {
    local began took
    streams 15
    within 30 running
    grows "taken away: over the port" $rail
    began=$(now_ms)
    check "taken away: the device is deleted" timeout 30 rdma link delete rxe0
    took=$(($(now_ms) - began))
    if [ $took -lt 2000 ]; then ok "taken away: after $took ms"; else failed "taken away" "after $took ms"; fi
    grows "taken away: over the kernel's sockets" udp:lo
    doorbell counters
    ended "taken away"
    made
    verified "taken away: one of that name that came back" doorbell pingpong --rail $rail --verify --sizes 64 --samples 20 --no-reference
}

ip addr add 10.90.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
check "the interface is up" within 10 has_flag_up eth0
made
based
told
for part in ${PARTS:-contract calls carried failover killed taken}; do $part; done
if dmesg | grep -E 'BUG:|WARNING:|rxe.*(cleanup failed|err)|unregister_netdevice'; then
    failed "the kernel has nothing to complain of" "see the lines above"
else
    ok "the kernel has nothing to complain of"
fi
finish
