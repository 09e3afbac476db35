# Rails over queue pairs of the soft-RoCE devices of one guest, whose ranks reach each other inside a device: beside the
# library's own tools, with each layer, failing over while the interface below goes and comes, and while the device is
# taken away.

made() {
    check "$1: a soft-RoCE device on the interface" rdma link add "$1" type rxe netdev "$2"
    check "$1: the library lists it" within 10 is_listed "$1"
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

listed() {
    said=$(doorbell info 2>&1)
    grep -A 14 '^verbs' <<< "$said"
    says "$kind, info: the port, usable" "$said" "^$rail +usable"
}

# The promises of a rail, over the port itself.
contract() {
    said=$(timeout 200 verbs-lab conformance $rail 2> marks)
    local status=$? line
    cat marks
    while read -r line; do
        case $line in
            "holds "*) ok "$kind, conformance: ${line#holds }" ;;
            "broken "*) failed "$kind, conformance: ${line#broken }" "$(tail -n 3 marks)" ;;
        esac
    done <<< "$said"
    if [ $status = 0 ]; then ok "$kind, conformance: all of it"; else failed "$kind, conformance: all of it" "exit $status: $(tail -n 3 marks)"; fi
}

# Memory of all lengths, exposed and withdrawn one after the other.
operations() {
    if [ $kind = rc ]; then
        measured "$kind, operations: bytes of all lengths, exposed one after the other" verbs-lab operations $rail
    fi
}

# A batch of sixteen is one system call, and receiving is none; one for each 500 besides is housekeeping.
calls() {
    if said=$(timeout 120 strace -f -o calls verbs-lab exchange $rail 2> marks); then
        ok "$kind, calls: every frame came whole"
    else
        failed "$kind, calls: every frame came whole" "exit $?: $said $(tail -n 3 marks)"
    fi
    local writes others
    sed -n '/the steady state begins/,/the steady state ends/p' calls | sed '1d;$d' > steady
    sed -E 's/^[0-9]+ +//; s/\(.*//' steady | sort | uniq -c
    writes=$(grep -c ' write(' steady)
    others=$(grep -vc ' write(' steady)
    says "$kind, calls: it came to its end" "$(< marks)" 'ends: 8000 frames'
    if [ "$writes" -le 516 ]; then ok "$kind, calls: $writes writes for 8000 frames"; else failed "$kind, calls" "$writes writes: $(head -n 20 steady)"; fi
    # Four turns of two rails, each with one look at its port.
    if [ "$others" -le 1000 ]; then ok "$kind, calls: $others others in eight turns"; else failed "$kind, calls" "$others others"; fi
}

carried() {
    verified "$kind, pingpong" doorbell pingpong --rail $rail --verify --sizes 8,64,1400,8Ki,64Ki,1Mi --samples 30 --no-reference
    says "$kind, pingpong: over the port" "$said" "^rail  *$rail"
    verified "$kind, stream" doorbell stream --rail $rail --verify --sizes 64,4Ki,256Ki --seconds 3 --no-reference
    verified "$kind, rate" doorbell rate --rail $rail --verify --sizes 8,64 --seconds 3 --no-reference
    local layer ranks
    for layer in portals am; do
        verified "$kind, $layer" doorbell pingpong --layer $layer --rail $rail --verify --sizes 8,1400,64Ki --samples 20 --no-reference
    done
    for ranks in 2 4; do
        verified "$kind, run -n $ranks" doorbell run -n $ranks --rail $rail --bind none -- doorbell pingpong --verify --sizes 64,8Ki --samples 20 --no-reference
    done
}

# Short messages over rings, which soft-RoCE uses only when it is told to: of two ranks that poll, and while the interface goes.
ring() {
    if [ $kind != rc ]; then return 0; fi
    local -x DOORBELL_VERBS_RING=on
    local through
    verified "$kind, ring: pingpong" doorbell pingpong --rail $rail --verify --sizes 8,64,512,1400,8Ki --samples 30 --no-reference
    verified "$kind, ring: stream" doorbell stream --rail $rail --verify --sizes 64,512,4Ki --seconds 3 --no-reference
    streams 40 $rail udp:lo
    grows "$kind, ring: over the port" $rail
    through=$(doorbell counters --name "$rail.ring" 2> /dev/null | awk '{ for (at = 2; at <= NF; at++) if ($at ~ /^[0-9]+$/) count += $at } END { print count + 0 }')
    if [ "$through" -gt 0 ]; then ok "$kind, ring: $through messages over rings"; else failed "$kind, ring: messages over rings" "none"; fi
    ip link set eth0 down
    grows "$kind, ring: the interface is down, over the kernel's sockets" udp:lo
    ip link set eth0 up
    grows "$kind, ring: the interface is up, over the port again" $rail
    ended "$kind, ring"
}

# Sixteen ranks, and what they leave. Every pair of them has a bound of three seconds, which an emulated machine may miss: shown.
many() {
    timeout 170 doorbell links --ranks 16 --rail $rail 2> client.err | tail -n 8
    verified "$kind, run -n 16" doorbell run -n 16 --rail $rail --bind none -- doorbell pingpong --verify --sizes 64 --samples 5 --no-reference
    check "$kind, 16 ranks: nothing is left" within 5 is_free rxe0
}

# streams SECONDS RAIL...: until the port carries it.
streams() {
    local seconds=$1
    shift
    doorbell stream $(printf -- '--rail %s ' "$@") --verify --sizes 4Ki --seconds "$seconds" --no-reference > client.log 2>&1 &
    client=$!
    within 40 running $rail
}

# quiet RAIL: next to nothing is sent over it.
quiet() { local before; before=$(sent "$1"); sleep 2; [ $(($(sent "$1") - before)) -lt 20 ]; }

# The interface goes and comes: the messages go on over the kernel's sockets, and come back.
failover() {
    streams 40 $rail udp:lo
    grows "$kind, failover: over the port" $rail
    ip link set eth0 down
    grows "$kind, failover: the interface is down, over the kernel's sockets" udp:lo
    check "$kind, failover: the port is quiet" within 10 quiet $rail
    ip link set eth0 up
    grows "$kind, failover: the interface is up, over the port again" $rail
    ended "$kind, failover"
}

# Two devices, each of which reaches itself alone.
failover_twice() {
    local second
    second=$(rail_of rxe1 $kind)
    streams 30 $rail "$second"
    grows "$kind, two devices: over the first" $rail
    ip link set eth0 down
    grows "$kind, two devices: the first is down, over the second" "$second"
    ip link set eth0 up
    grows "$kind, two devices: the first is up, over it again" $rail
    ip link set eth1 down
    check "$kind, two devices: the second is quiet" within 10 quiet "$second"
    grows "$kind, two devices: the second is down, over the first" $rail
    ip link set eth1 up
    grows "$kind, two devices: the second is up, over it again" "$second"
    ended "$kind, two devices"
}

# With shared memory and the kernel's sockets beside it: shared memory breaks by itself after so many messages.
failover_thrice() {
    DOORBELL_FAULT_INJECT=shm:1000 streams 30 shm $rail udp:lo
    grows "$kind, three rails: shared memory has broken, over the port" $rail
    ip link set eth0 down
    grows "$kind, three rails: the interface is down, over the kernel's sockets" udp:lo
    ip link set eth0 up
    grows "$kind, three rails: the interface is up, over the port again" $rail
    ended "$kind, three rails"
}

# The queue pair breaks by itself after so many messages, at both ends: over to the kernel's sockets, or to the other service of the
# port, and back.
injected() {
    local beside other=rc
    if [ $kind = rc ]; then other=ud; fi
    for beside in udp:lo $(rail_of rxe0 $other); do
        DOORBELL_FAULT_INJECT=$rail:2000 streams 20 $rail $beside
        grows "$kind, broken by itself: over $beside" $beside
        grows "$kind, broken by itself, beside $beside: and over the port's queue pairs again" $rail
        ended "$kind, broken by itself, beside $beside"
    done
}

# A process that is killed leaves nothing.
killed() {
    streams 60 $rail udp:lo
    rdma resource
    kill -KILL $(pidof doorbell)
    wait $client 2> /dev/null
    check "$kind, killed: nothing is left" within 5 is_free rxe0
    rdma resource
    verified "$kind, killed: the next one" doorbell pingpong --rail $rail --verify --sizes 64 --samples 20 --no-reference
}

# The device is deleted under load: the command ends within two seconds, and the messages go on.
taken() {
    local began took
    streams 15 $rail udp:lo
    grows "$kind, taken away: over the port" $rail
    began=$(now_ms)
    check "$kind, taken away: the device is deleted" timeout 30 rdma link delete rxe0
    took=$(($(now_ms) - began))
    if [ $took -lt 2000 ]; then ok "$kind, taken away: after $took ms"; else failed "$kind, taken away" "after $took ms"; fi
    grows "$kind, taken away: over the kernel's sockets" udp:lo
    ended "$kind, taken away"
    made rxe0 eth0
    verified "$kind, taken away: one of that name that came back" doorbell pingpong --rail $rail --verify --sizes 64 --samples 20 --no-reference
}

# Clients of libfabric over the port alone. Bytes are checked by the clients.
ofi() {
    local before number size test
    ofi_info "$kind, libfabric" $rail
    before=$(packets rxe0)
    # All sizes, up to 6 MiB, would take minutes on an emulated machine.
    for size in 8 1400 8192 65536 1048576; do
        pings "$kind, libfabric: fi_pingpong, $size bytes" $rail -I 10 -S $size -m tagged
    done
    for test in ${TESTS:-send unexpected flood mprobe alltoall last-message threads accumulate locks compare-and-swap}; do
        said=$(mpi_of $rail $test 2>&1)
        says "$kind, libfabric: Open MPI, $test" "$said" "^$test: passed, 2 ranks"
    done
    number=$(($(packets rxe0) - before))
    if [ $number -gt 1000 ]; then ok "$kind, libfabric: over the port, $number packets"; else failed "$kind, libfabric: over the port" "$number packets"; fi
    check "$kind, libfabric: nothing is left" within 5 is_free rxe0
}

# The interface goes and comes under an MPI that sums and exchanges, and checks all of it. Not with puts: Open MPI has a domain for them
# and one for messages, and two ranks that wait, each in a loop for one of these alone, keep each other waiting.
ofi_failover() {
    local stop=$PWD/steady.stop
    rm -f $stop
    MPI_STEADY_STOP=$stop mpi_of $rail,udp:lo steady > client.log 2>&1 &
    client=$!
    within 60 running $rail
    grows "$kind, libfabric, failover: over the port" $rail
    ip link set eth0 down
    grows "$kind, libfabric, failover: the interface is down, over the kernel's sockets" udp:lo
    ip link set eth0 up
    grows "$kind, libfabric, failover: the interface is up, over the port again" $rail
    : > $stop
    within 60 has_ended $client || kill $client
    wait $client
    cat client.log
    says "$kind, libfabric, failover: every sum and byte right" "$(< client.log)" '^steady: passed, 2 ranks'
    check "$kind, libfabric, failover: nothing is left" within 5 is_free rxe0
}

for number in 0 1; do
    ip addr add 10.9$number.0.1/24 dev eth$number
    ip link set eth$number up
    check "eth$number is up" within 10 has_flag_up eth$number
    made rxe$number eth$number
done
based
for kind in $KINDS; do
    rail=$(rail_of rxe0 $kind)
    for part in ${PARTS:-listed contract operations calls carried ring many failover failover_twice failover_thrice injected killed taken ofi ofi_failover}; do $part; done
done
complaints
finish
