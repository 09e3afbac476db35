# Rails that bypass the kernel on two network interfaces of one machine, each in a namespace, with a wire between.
#
# HAD      modes that have to work
# REFUSED  modes that have to be refused, with the expected REASON
# QUEUES   how many queues each interface is given; none: as many as it has
# BEST     the mode that is chosen by default
# SAID     what `doorbell info` prints first, from the features that the driver reports

# An emulated machine is slow: a process that polls takes the time that the other side needs, and a NIC that is
# reset is away for seconds.
export DOORBELL_WAIT=sleep DOORBELL_PATIENCE=60s DOORBELL_JOB_TIMEOUT=60s

at() { local host=$1; shift; ip netns exec "$host" "$@"; }

hosts() {
    local number host
    for number in 0 1; do
        host=h$number
        ip netns add $host
        ip link set eth$number netns $host name nic
        ip -n $host link set lo up
        ip -n $host addr add 10.77.0.$((number + 1))/24 dev nic
        [ -n "$QUEUES" ] && check "$host has $QUEUES queues" at $host ethtool -L nic combined "$QUEUES"
        ip -n $host link set nic up
    done
    check "the interfaces are up" within 30 both_up
    doorbell key key > /dev/null
}

both_up() { local host; for host in h0 h1; do ip -n $host link show nic | grep -q 'state UP' || return; done; }

# serve MODE: a server at h1 in $server, for one client, and its address in $address.
serve() {
    # The end of a rail resets its NIC.
    within 30 both_up
    DOORBELL_XDP_MODE=$1 serving "$1" at h1 doorbell pingpong --serve --once --bind 10.77.0.2:0 --rail xdp:nic --key-file key
    address=$(grep -oE '10\.77\.0\.2:[0-9]+' server.log | head -n 1)
}

# call MODE WORDS...: a client at h0 in $client.
call() {
    local mode=$1
    shift
    DOORBELL_XDP_MODE=$mode at h0 timeout 90 doorbell pingpong --connect "$address" --rail xdp:nic --key-file key \
        --no-reference "$@" > client.log 2>&1 &
    client=$!
}

# What others show of a host: the program on its interface, and the mode of its queues.
program() { ip -n "$1" link show nic | grep -oE 'xdp(generic|offload)?[ /][^ ]*' | tr '\n' ' '; }
has_program() { ip -n "$1" link show nic | grep -q 'prog/xdp'; }
is_bare() { ! has_program "$1" && [ -z "$(queues "$1")" ]; }
queues() { at "$1" ss --xdp -e | grep -oE 'zc:[01]|umem\(' | grep -v umem; }
# shows_mode HOST MODE
shows_mode() {
    local found
    found=$(queues "$1" | sort -u)
    case $2 in
        zero-copy) has_program "$1" && [ "$found" = zc:1 ] ;;
        native) has_program "$1" && ! ip -n "$1" link show nic | grep -q xdpgeneric && [ "$found" = zc:0 ] ;;
        generic) ip -n "$1" link show nic | grep -q xdpgeneric && [ "$found" = zc:0 ] ;;
    esac
}

# sees HOST MODE: it shows, at last, unless the client has ended before it did.
sees() {
    local until=$((SECONDS + 60))
    until shows_mode "$@"; do
        [ $SECONDS -lt $until ] && kill -0 $client 2> /dev/null || return 1
        sleep 0.1
    done
}

# In a mode that has to work, every message arrives, and the kernel and doorbell report the same mode of the queues.
carries() {
    local mode=$1 said
    serve "$mode"
    call "$mode" --verify --sizes 64,1400,16Ki --samples 50
    check "$mode: the kernel shows it at h0" sees h0 "$mode"
    check "$mode: the kernel shows it at h1" sees h1 "$mode"
    if wait $client; then ok "$mode: done"; else failed "$mode: done" "exit $?: $(tail -n 4 client.log)"; fi
    said=$(< client.log)
    says "$mode: doorbell says so" "$said" "^rail  *xdp:nic, .*; $mode"
    says "$mode: every message came once, whole and in order" "$said" ' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
    served "$mode"
    check "$mode: nothing is left at h1" within 10 is_bare h1
}

# In a mode that is not available, the error is one sentence, with the exit status of a rail that cannot be used.
refuses() {
    local mode=$1 said status
    serve best
    call "$mode"
    wait $client
    status=$?
    said=$(< client.log)
    if [ $status = 3 ]; then ok "$mode: refused with 3"; else failed "$mode: refused with 3" "exit $status: $said"; fi
    says "$mode: the reason is told" "$said" "xdp:nic.*$mode: $REASON"
    if [ "$(grep -c . <<< "$said")" = 1 ]; then ok "$mode: one sentence"; else failed "$mode: one sentence" "$said"; fi
    check "$mode: a refused rail leaves nothing" within 10 is_bare h0
    kill -KILL $(pidof doorbell)
    wait $server 2> /dev/null
}

# By default, the best mode is chosen; a killed process leaves a clean interface.
killed() {
    local status
    serve best
    call best --sizes 64 --seconds 60
    check "best: it is $BEST at h0" sees h0 "$BEST"
    check "best: it is $BEST at h1" sees h1 "$BEST"
    kill -KILL $(pidof doorbell)
    wait $client 2> /dev/null
    status=$?
    # 128 and the signal's number.
    if [ $status = 137 ]; then ok "killed: it was"; else failed "killed: it was" "exit $status: $(tail -n 2 client.log)"; fi
    wait $server 2> /dev/null
    check "killed: nothing is left at h0" within 10 is_bare h0
    check "killed: nothing is left at h1" within 10 is_bare h1
}

hosts
said=$(at h0 doorbell info)
says "info: $SAID comes first" "$(grep '^xdp:nic' <<< "$said")" "mode: $SAID"
for mode in $HAD; do carries "$mode"; done
for mode in $REFUSED; do refuses "$mode"; done
killed
finish
