# Jobs between two hosts over soft-RoCE devices on two wires, with the kernel's sockets on a third, and what happens to their
# messages when something breaks under load. What precedes this file says what a host is.

# rails HOST RAIL...: options of the rails; `0` and `1` are devices on the wires, `udp` is the third wire.
rails() {
    local host=$1 rail
    shift
    for rail in "$@"; do
        case $rail in
            udp) echo --rail udp:$(nic $host 2) ;;
            *) echo --rail $(rail_of $(device $host $rail) $kind) ;;
        esac
    done
}
# over RAIL: its name at `a`.
over() { local word=$(rails a $1 | tr '\n' ' '); word=${word#--rail }; echo ${word% }; }

# The host `b` serves one client; the control connection goes over the third wire.
serve() { in_shell_of_b "serving '$1' $on_b doorbell $2 --serve --once --bind $control --key-file key $(rails b "${@:3}" | tr '\n' ' ')"; }
served_at_b() { in_shell_of_b "served '$1'"; }

# carried WHAT COMMAND WORDS...: a measurement over the first device alone; the command is of both ends.
carried() {
    local what=$1 verb=$2
    shift 2
    serve "$what" "$verb" 0 || return
    verified "$what" $on_a doorbell $verb --connect $control --key-file key $(rails a 0) --verify --no-reference "$@"
    served_at_b "$what"
}

# loaded WHAT SECONDS RAIL...: a stream from `a` to `b`.
loaded() {
    local what=$1 seconds=$2
    shift 2
    serve "$what" stream "$@" || return
    $on_a doorbell stream --connect $control --key-file key $(rails a "$@") --verify --sizes 4Ki --seconds $seconds --no-reference \
        > client.log 2>&1 &
    client=$!
    within 40 running $(over 0)
    grows "$what: over the device" $(over 0)
}
# done_with WHAT: it has to end well at both ends.
done_with() {
    ended "$1"
    served_at_b "$1"
}

# breaks WHAT RAIL BREAK MEND: while it is broken, the rail carries what is sent; afterwards, the device does.
breaks() {
    has_ended $client && { failed "$1" "the stream has ended before"; return; }
    eval "$3"
    grows "$1, over the rail that is left" $(over $2)
    eval "$4"
    grows "$1, and over the device again" $(over 0)
}

cut() { at $1 ip link set $(nic $1 ${2:-0}) down; }
mend() { at $1 ip link set $(nic $1 ${2:-0}) up; }

interface() {
    loaded "$kind, interface" 40 0 udp
    breaks "$kind, interface: down at a" udp "cut a" "mend a"
    breaks "$kind, interface: down at b" udp "cut b" "mend b"
    breaks "$kind, interface: down at both" udp "cut a; cut b" "mend a; mend b"
    done_with "$kind, interface"
}

# Both devices, and which of them is left.
second() {
    loaded "$kind, two devices" 40 0 1
    breaks "$kind, two devices: the first is down at a" 1 "cut a" "mend a"
    breaks "$kind, two devices: the first is down at b" 1 "cut b" "mend b"
    cut b 1
    grows "$kind, two devices: the second is down at b, over the first" $(over 0)
    mend b 1
    grows "$kind, two devices: the second is up at b, over it again" $(over 1)
    done_with "$kind, two devices"
}

# forbid HOST MORE: no packets of RoCE come in there, of those that MORE allows.
forbid() {
    at $1 nft add table inet lab
    at $1 nft add chain inet lab in '{ type filter hook input priority 0; }'
    at $1 nft add rule inet lab in udp dport 4791 $2 counter drop
}
permit() { at $1 nft list table inet lab | grep -o 'counter.*'; at $1 nft delete table inet lab; }
firewall() {
    loaded "$kind, firewall" 70 0 udp
    breaks "$kind, firewall: nothing comes to b" udp "forbid b" "permit b"
    breaks "$kind, firewall: nothing comes to a" udp "forbid a" "permit a"
    breaks "$kind, firewall: nothing comes to either" udp "forbid a; forbid b" "permit a; permit b"
    # Behind the UDP header stands the operation: acknowledgements of reliable connections alone.
    if [ $kind = rc ]; then
        breaks "$kind, firewall: no acknowledgement comes to a" udp "forbid a '@th,64,8 0x11'" "permit a"
    fi
    breaks "$kind, firewall: no full frame comes to b" udp "forbid b 'meta length > 700'" "permit b"
    done_with "$kind, firewall"
}

# flaps HOST: its first interface goes and comes every 200 ms, for ten seconds.
flaps() {
    local card=$(nic $1 0)
    at $1 bash -c "for turn in {1..25}; do ip link set $card down; sleep 0.2; ip link set $card up; sleep 0.2; done"
}
flap() {
    loaded "$kind, flap" 90 0 udp
    local host
    for host in a b; do
        flaps $host
        grows "$kind, flap at $host: over the device again" $(over 0)
    done
    done_with "$kind, flap"
}

# The process at either end is killed: the other one ends with the status of a lost peer, and nothing is left.
killed() {
    local host
    for host in a b; do
        loaded "$kind, killed at $host" 60 0 udp
        if [ $host = a ]; then
            kill -KILL $client
            check "$kind, killed at a: b ends" in_shell_of_b 'within 60 has_ended $server'
            wait $client 2> /dev/null
        else
            in_shell_of_b 'kill -KILL $server'
            check "$kind, killed at b: a ends" within 60 has_ended $client
            wait $client
            says "$kind, killed at b: a says who is lost" "status $? $(< client.log)" 'status 4 '
        fi
        # Each of its own: the one that was killed has no status.
        in_shell_of_b 'wait $server'
        check "$kind, killed at $host: a has nothing left" within 5 is_free $(device a 0)
        check "$kind, killed at $host: b has nothing left" within 5 in_shell_of_b "is_free $(device b 0)"
    done
    carried "$kind, killed: the next one" pingpong --sizes 64 --samples 20
}

# The device is deleted at either end: the command ends within two seconds; the job goes on without it, and the next job has it.
taken() {
    local host began took
    for host in a b; do
        loaded "$kind, taken away at $host" 12 0 udp
        began=$(now_ms)
        check "$kind, taken away at $host: the device is deleted" at $host timeout 30 rdma link delete $(device $host 0)
        took=$(($(now_ms) - began))
        if [ $took -lt 2000 ]; then ok "$kind, taken away at $host: after $took ms"; else failed "$kind, taken away at $host" "after $took ms"; fi
        grows "$kind, taken away at $host: over the kernel's sockets" $(over udp)
        done_with "$kind, taken away at $host"
        made $host 0
    done
    carried "$kind, taken away: ones of those names that came back" pingpong --sizes 64 --samples 20
}

# shown WHAT INFO WHY: what `doorbell info` reports of the port, and `doorbell why` of the way over it.
shown() {
    said=$(COLUMNS=3000 at a doorbell info 2>&1 | grep -F "$(over 0) ")
    echo "$said"
    says "$kind, $1: info" "$said" "$2"
    said=$(doorbell why 1 2>&1 | grep -F "  $(over 0) ")
    echo "$said"
    says "$kind, $1: why" "$said" "^ *$(over 0) +$3 "
}
# An address, the MTU and a VLAN change under load.
changed() {
    local card smaller
    card=$(nic a 0)
    loaded "$kind, addresses" 60 0 udp
    shown "addresses: before" 'gid: [0-9]+ ::ffff:10.90.0.1 ' chosen
    at a ip addr del 10.90.0.1/24 dev $card
    grows "$kind, addresses: taken away at a, over the rail that is left" $(over udp)
    shown "addresses: taken away" 'gid: [0-9]+ fe80' down
    at a ip addr add 10.90.0.1/24 dev $card
    grows "$kind, addresses: given back, and over the device again" $(over 0)
    shown "addresses: given back" 'gid: [0-9]+ ::ffff:10.90.0.1 ' chosen
    at a ip link set $card mtu 700
    if [ $kind = rc ]; then
        smaller=chosen
        grows "$kind, MTU: smaller at a, over other queue pairs of the device" $(over 0)
    else
        smaller=down
        grows "$kind, MTU: smaller at a, over the rail that is left" $(over udp)
    fi
    shown "MTU: smaller" 'mtu: 512 bytes' $smaller
    at a ip link set $card mtu 1500
    grows "$kind, MTU: as before, and over the device again" $(over 0)
    shown "MTU: as before" 'mtu: 1024 bytes' chosen
    at a ip link add link $card name $card.5 type vlan id 5
    at a ip addr add 10.95.0.1/24 dev $card.5
    at a ip link set $card.5 up
    grows "$kind, VLAN: over the device as before" $(over 0)
    shown "VLAN" "::ffff:10.95.0.1 .*$card.5" chosen
    at a ip link del $card.5
    done_with "$kind, addresses"
}
alone() {
    carried "$kind, pingpong" pingpong --sizes 8,64,1400,8Ki,64Ki,1Mi --samples 30
    carried "$kind, stream" stream --sizes 64,4Ki,256Ki --seconds 3
    carried "$kind, rate" rate --sizes 8,64 --seconds 3
    carried "$kind, portals" "pingpong --layer portals" --sizes 8,1400,64Ki --samples 20
    carried "$kind, am" "pingpong --layer am" --sizes 8,1400,64Ki --samples 20
}

# Two resolution services whose messages are datagrams of RoCE v2: a query to the group, and the answer to the asker alone.
resolved() { local host=$1; shift; at $host doorbell acm resolve "$@" --service /tmp/acm-$host.sock 2>&1; }
acm_state() { at a doorbell acm watch --once --json --socket /tmp/acm-a.sock.watch 2>&1; }
is_served() { acm_state | grep -q "\"queue_pair\": *\"$(device a 0):1 0x"; }
acm_ud() {
    # Once: it is the same for every kind of rail.
    [ -z "$acm_ud_done" ] || return
    acm_ud_done=1
    local dump
    $on_a tcpdump -Z root -l -n -i $(nic a 0) udp port 4791 > acm.dump 2> acm.dump.err &
    dump=$!
    check "acm: frames are captured at a" within 10 grep -q listening acm.dump.err
    in_shell_of_b "acm_serves b $(nic b 0) $on_b"
    # What b announces is over by then: a has to query it.
    sleep 3
    acm_serves a $(nic a 0) $on_a
    check "acm, a: a queue pair of its device" within 20 is_served
    says "acm, a: the address of b" "$(resolved a 10.90.0.2)" '^10.90.0.2 from 10.90.0.1: ::ffff:10.90.0.1 -> ::ffff:10.90.0.2, '
    says "acm, b: the address of a" "$(resolved b 10.90.0.1)" '^10.90.0.1 from 10.90.0.2: ::ffff:10.90.0.2 -> ::ffff:10.90.0.1, '
    says "acm, a: an address that nobody has" "$(resolved a 10.90.0.77)" 'no answer in time'
    said=$(acm_state)
    grep -oE '"(carrier_kind|taken|sent|dropped_[a-z]*|resets|unresolved|unsent)": *[^,}]*' <<< "$said" | grep -v ': *0$'
    says "acm, a: what carries its messages" "$said" '"carrier_kind": *"ud"'
    says "acm, a: something was taken" "$said" '"taken": *[1-9]'
    check "acm, a: its interface is set down" cut a
    sleep 2
    check "acm, a: and up" mend a
    check "acm, a: it is served again" within 40 is_served
    check "acm, a: and resolves again" within 40 resolved a 10.90.0.2
    check "acm, a: its device is deleted" at a timeout 30 rdma link delete $(device a 0)
    says "acm, a: why it is not served" "$(within 10 eval 'acm_state | grep -q "RDMA device"'; acm_state)" '"unserved": *"[^"]*RDMA device'
    made a 0
    check "acm, a: served by a device of that name" within 60 is_served
    check "acm, a: and resolves once more" within 40 resolved a 10.90.0.2
    acm_ends a
    # In a user namespace of its own, a process has no rights over the host's network.
    said=$($on_a timeout 30 unshare -U -r doorbell acm serve --socket /tmp/acm-a.sock --nic $(nic a 0) --config acm-a 2>&1)
    says "acm, a: without CAP_NET_RAW it ends, and says what is missing" "status $? ${said//$'\n'/ }" '^status 3 .*CAP_NET_RAW'
    in_shell_of_b "acm_ends b"
    kill $dump
    wait $dump
    head -n 20 acm.dump
    # Base and datagram headers (20), the datagram (256) and the check sum behind it (4).
    says "acm, frames: the query goes to the group" "$(< acm.dump)" 'IP 10\.90\.0\.1\.[0-9]+ > 239\.255\.[0-9]+\.[0-9]+\.4791: .*length 280'
    says "acm, frames: the answer goes to the asker" "$(< acm.dump)" 'IP 10\.90\.0\.2\.[0-9]+ > 10\.90\.0\.1\.4791: .*length 280'
    check "acm: a has nothing left" within 5 is_free $(device a 0)
    check "acm: b has nothing left" within 5 in_shell_of_b "is_free $(device b 0)"
}

# list_of HOST RAIL...: the names of rails there, with commas between them.
list_of() { rails "$@" | sed 's/^--rail //' | paste -sd,; }
# ofi_carried WHAT WORDS...: fi_pingpong between the hosts, over the first device and the third wire.
ofi_carried() {
    in_shell_of_b "prefix='$on_b'; ofi_serves $(list_of b 0 udp) ${*:2}"
    measured "$1" $on_a $(ping_of $(list_of a 0 udp) "${@:2}") $control
    served_at_b "$1"
}

# Clients of libfabric, which meet over the third wire: a device has no address of IP at which a stranger could call.
ofi() {
    local what="$kind, libfabric" count before end size
    ofi_info "$what" $(list_of a 0 udp) $on_a
    before=$(packets $(device a 0))
    for size in 8 8192 65536 1048576; do ofi_carried "$what: fi_pingpong, $size bytes" -I 50 -S $size -m tagged; done
    count=$(($(packets $(device a 0)) - before))
    if [ $count -gt 1000 ]; then ok "$what: over the device, $count packets"; else failed "$what: over the device" "$count packets"; fi
    ofi_carried "$what: fi_pingpong, how long it takes" -I 500 -S 4096
    # Its last column but one has microseconds: so many messages there and back take 80 s.
    count=$(awk 'NF > 6 { each = $(NF - 1) } END { print int(40000000 / (each + 1)) }' <<< "$said")
    in_shell_of_b "prefix='$on_b'; ofi_serves $(list_of b 0 udp) -I $count -S 4096"
    timeout 200 $on_a $(ping_of $(list_of a 0 udp) -I $count -S 4096) $control > client.log 2>&1 &
    client=$!
    within 40 running $(over 0)
    grows "$what, interface: over the device" $(over 0)
    breaks "$what, interface: down at a" udp "cut a" "mend a"
    breaks "$what, interface: down at b" udp "cut b" "mend b"
    within 200 has_ended $client || kill $client
    wait $client
    end=$?
    cat client.log
    says "$what, interface: all $count came, with the right bytes" "status $end $(< client.log)" "^status 0 "
    served_at_b "$what, interface"
}

hosts
wired
for kind in $KINDS; do
    for part in ${PARTS:-alone interface second firewall flap killed taken changed ofi acm_ud}; do $part; done
done
complaints
parted
finish
