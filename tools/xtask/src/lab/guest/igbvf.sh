# Rails over virtual functions of two 82576s, driven from user space behind an emulated IOMMU: with each other,
# with a kernel's UDP socket at the other end of the wire, while their adapters fail and return, and while a
# function is unplugged.
#
# MESSAGES  how many verified messages have to arrive at least
# SAMPLES   how many samples a measurement takes

export DOORBELL_WAIT=sleep DOORBELL_PATIENCE=60s DOORBELL_JOB_TIMEOUT=60s DOORBELL_DEADLINE=90s

devices=/sys/bus/pci/devices

# of_mac MAC: the PCI address of the NIC that has it.
of_mac() { local nic; nic=$(grep -lx "$1" /sys/class/net/*/address | head -n 1); basename "$(readlink "$(dirname "$nic")"/device)"; }
# nic BDF: the interface of a device.
nic() { ls $devices/"$1"/net; }
vf() { basename "$(readlink $devices/"$1"/virtfn"$2")"; }

# bind BDF: runs the commands that `doorbell doctor` prints.
bind() {
    echo vfio-pci > $devices/"$1"/driver_override
    [ -e $devices/"$1"/driver ] && echo "$1" > $devices/"$1"/driver/unbind
    echo "$1" > /sys/bus/pci/drivers_probe
}

made() {
    local adapter number
    a=$(of_mac 52:54:00:00:0a:00) b=$(of_mac 52:54:00:00:0b:00) wire=$(nic "$(of_mac 52:54:00:00:0c:00)")
    for adapter in "$a" "$b"; do
        ip link set "$(nic "$adapter")" up
        check "$adapter: two virtual functions" bash -c "echo 2 > $devices/$adapter/sriov_numvfs"
    done
    # The first one is left to the doctor.
    for number in "$(vf "$a" 1)" "$(vf "$b" 0)" "$(vf "$b" 1)"; do bind "$number"; done
    nic_a=$(nic "$a") nic_b=$(nic "$b")
    a0=$(vf "$a" 0) a1=$(vf "$a" 1) b0=$(vf "$b" 0) b1=$(vf "$b" 1)
    export DOORBELL_IGBVF_ADDRESS="$a0=10.78.0.1/24 $a1=10.78.0.2/24 $b0=10.79.0.1/24 $b1=10.79.0.2/24"
    # A third link between the two ranks: the kernel's, between two namespaces.
    ip netns add h0
    ip netns add h1
    ip link add name nic netns h0 type veth peer name nic netns h1
    ip -n h0 link set lo up
    ip -n h1 link set lo up
    ip -n h0 addr add 10.80.0.1/24 dev nic
    ip -n h1 addr add 10.80.0.2/24 dev nic
    ip -n h0 link set nic up
    ip -n h1 link set nic up
    # The kernel's end of the wire of the first adapter.
    ip netns add h2
    ip link set "$wire" netns h2 name nic
    ip -n h2 link set lo up
    ip -n h2 addr add 10.78.0.3/24 dev nic
    ip -n h2 addr add fd78::3/64 dev nic nodad
    ip -n h2 link set nic up
    # What the kernel puts together of several packets has no checksum.
    at h2 ethtool -K nic gro off
    doorbell key key > /dev/null
}

at() { local host=$1; shift; ip netns exec "$host" "$@"; }

# serve HOST ADDRESS COMMAND RAILS...: a server in $server, and its address in $address.
serve() {
    local host=$1 bind=$2
    shift 2
    serving "$host" at "$host" doorbell pingpong --serve --once --bind "$bind" "$@" --key-file key || return
    address=$(grep -oE "${bind%:*}:[0-9]+" server.log | head -n 1)
}

# measured WHAT COMMAND...: a client at h0 that has to end well, in $said.
measured() {
    local what=$1 status
    shift
    said=$(at h0 timeout 140 "$@" --connect "$address" --key-file key --no-reference 2> client.err)
    status=$?
    if [ $status = 0 ]; then ok "$what: done"; else failed "$what: done" "exit $status: $(tail -n 4 client.err)"; fi
    tail -n 12 <<< "$said"
}

# Two processes with a virtual function each, of one adapter: through its own switch.
between_functions() {
    serve h1 10.80.0.2:0 --rail igbvf:"$a1"
    measured "pingpong" doorbell pingpong --rail igbvf:"$a0" --verify --sizes 8,64,1400,16Ki,100000 --samples "$SAMPLES"
    says "pingpong: over the function" "$said" "^rail  *igbvf:$a0"
    says "pingpong: how" "$said" "group and container, two send queues, checksums by the device"
    says "pingpong: every message came once, whole and in order" "$said" ' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
    served pingpong
    local count=0 some until=$((SECONDS + 150))
    # The number in a given time depends on the other load of the processor.
    while [ $count -lt "$MESSAGES" ] && [ $SECONDS -lt $until ] && [ $failures = 0 ]; do
        serve h1 10.80.0.2:0 --rail igbvf:"$a1"
        measured "many" doorbell rate --rail igbvf:"$a0" --verify --sizes 8,64,700,1400,4Ki --seconds 6
        says "many: every message came once, whole and in order" "$said" ' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
        some=$(grep -oE 'verified: [0-9]+' <<< "$said" | grep -oE '[0-9]+')
        count=$((count + ${some:-0}))
        served many
    done
    if [ $count -ge "$MESSAGES" ]; then ok "many: $count of $MESSAGES"; else failed "many" "$count messages"; fi
}

# Two ranks of one machine, each with a function of its own of a set; what a process has is left out, and one rank
# more than there are functions is refused before any starts.
of_a_set() {
    local set=igbvf:"${a0%.*}".\* status waits
    said=$(doorbell run -n 2 --no-prefix --timeout 120 --rail "$set" -- rails 2>&1)
    echo "$said"
    says "set: the first rank has the first function" "$said" "^rank 0: igbvf:$a0; from 1"
    says "set: the second rank has the second one" "$said" "^rank 1: igbvf:$a1; from 0"
    said=$(doorbell run -n 3 --rail "$set" -- touch started 2>&1)
    status=$?
    echo "$said"
    check "set: too few are refused" test $status = 3
    says "set: how many there are" "$said" "2 of those that it stands for are free \(igbvf:$a0, igbvf:$a1\)"
    says "set: how to make more" "$said" "echo 0 > $devices/$a/sriov_numvfs && echo 3 > $devices/$a/sriov_numvfs"
    check "set: no rank was started" test ! -e started
    env DOORBELL_RANK=0 DOORBELL_SIZE=2 DOORBELL_ROOT=@waits DOORBELL_RAILS=igbvf:"$a0" rails 2> /dev/null &
    waits=$!
    check "set: what a process has is left out, with its name" within 30 left_out "$set"
    kill $waits
    wait $waits 2> /dev/null
    within 10 eval ! left_out '"$set"'
}

# Whether the first function is another process's, and the one rank gets the second one.
left_out() {
    said=$(doorbell run -n 1 --rail "$1" --show-binding 2>&1)
    grep -qE "without igbvf:$a0: process [0-9]+ \(rails\) has it" <<< "$said" && grep -q "rails: igbvf:$a1" <<< "$said"
}

# A frame costs no system call. The rail's own work may check its events once for every five hundred frames.
without_calls() {
    if said=$(strace -f -o calls igbvf-lab exchange "$a0" "$a1" 2> marks); then
        ok "calls: every frame came back whole"
    else
        failed "calls: every frame came back whole" "exit $?: $said $(tail -n 3 marks)"
    fi
    local calls
    sed -n '/the steady state begins/,/the steady state ends/p' calls | sed '1d;$d' > steady
    calls=$(wc -l < steady)
    echo "$(grep -oE 'ends: .*' marks): $calls calls"
    sed -E 's/^[0-9]+ +//; s/\(.*//' steady | sort | uniq -c
    says "calls: it came to its end" "$(< marks)" 'ends: 40000 frames'
    if [ "$calls" -le 1000 ]; then ok "calls: $calls for 40000 frames"; else failed "calls" "$calls: $(head -n 20 steady)"; fi
}

# A rail of the kernel's sockets at the other end of the wire, by IPv4 and by IPv6; the kernel's own captures of
# the frames, decoded by the dissector where the program for it is installed.
with_the_kernel() {
    local family bind words
    for family in ipv4 ipv6; do
        if [ $family = ipv4 ]; then bind=10.78.0.3:0; else bind='[fd78::3]:0'; fi
        ip -n h0 link show up > /dev/null
        at h2 tcpdump -i nic -w whole.pcap -U -Z root udp > tcpdump.log 2>&1 &
        words=$!
        within 20 grep -q listening tcpdump.log || failed "$family: the kernel looks" "$(< tcpdump.log)"
        serve_kernel $family
        DOORBELL_IGBVF_ADDRESS=$(of_family $family) measured "$family, a kernel's socket" \
            doorbell pingpong --rail igbvf:"$a0" --verify --sizes 8,1400,16Ki --samples 50
        says "$family: every message came once, whole and in order" "$said" ' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
        served "$family, a kernel's socket"
        kill $words
        wait $words 2> /dev/null
        # Some of them are for the dissector, which is not in here.
        tcpdump -Z root -r whole.pcap -c 60 -w $family.pcap udp 2> /dev/null
        bring $family.pcap
        said=$(tcpdump -Z root -r whole.pcap -nn udp 2> /dev/null | head -n 4)
        echo "$said"
        says "$family: the kernel saw it on the wire" "$said" "$( [ $family = ipv4 ] && echo 10.78.0.1 || echo fd78::1 )\.56080 > "
        said=$(tcpdump -Z root -r whole.pcap -nn -vv udp 2> /dev/null)
        # The kernel's own frames are seen before its device has made their checksums.
        ours=$(grep -E '(10\.78\.0\.1|fd78::1)\.5608[01] > ' <<< "$said")
        says "$family: checksums by the device are right" "$ours" 'udp sum ok'
        if grep -q 'bad udp cksum' <<< "$ours"; then
            failed "$family: all of them" "$(grep -m 2 'bad udp cksum' <<< "$ours")"
        else
            ok "$family: all of them"
        fi
    done
}

of_family() { if [ "$1" = ipv4 ]; then echo "$DOORBELL_IGBVF_ADDRESS"; else echo "$a0=fd78::1/64"; fi; }

# The control connection goes over the kernel's other link, the messages over the wire.
serve_kernel() {
    ip -n h2 link show ctl > /dev/null 2>&1 || {
        ip link add name ctl netns h0 type veth peer name ctl netns h2
        ip -n h0 addr add 10.81.0.1/24 dev ctl
        ip -n h2 addr add 10.81.0.3/24 dev ctl
        ip -n h0 link set ctl up
        ip -n h2 link set ctl up
    }
    DOORBELL_UDP_FAMILY=$1 serve h2 10.81.0.3:0 --rail udp:nic
}

# rails RANK: two functions of two adapters, and the kernel's sockets, for one rank.
rails() {
    if [ "$1" = 0 ]; then echo "--rail igbvf:$a0 --rail igbvf:$b0 --rail udp:nic"; else echo "--rail igbvf:$a1 --rail igbvf:$b1 --rail udp:nic"; fi
}

# Packets so far over the kernel's link, and frames so far over functions.
of_link() { at h0 cat /sys/class/net/nic/statistics/tx_packets; }
of_functions() { doorbell counters --name "igbvf:$1.sent" --name "igbvf:$2.sent" | awk '/^  igbvf/ { sent += $2 } END { print sent + 0 }'; }
# grows WHAT COMMAND...: the number that the command prints grows by a hundred at least within the time.
grows() {
    local what=$1 before until
    shift
    before=$("$@")
    until=$((SECONDS + 30))
    while [ $(($("$@") - before)) -lt 100 ]; do
        if [ $SECONDS -ge $until ] || ! kill -0 $client 2> /dev/null; then
            failed "$what" "$before, then $("$@"); $(tail -n 2 client.log)"
            return
        fi
        sleep 0.2
    done
    ok "$what"
}

# One adapter fails, then the other: the messages go on over the other rails, and come back. Then one function is
# unplugged under load, and released within a second.
failover() {
    local began
    serve h1 10.80.0.2:0 $(rails 1) || return
    at h0 timeout 150 doorbell stream --connect "$address" --key-file key $(rails 0) --verify --sizes 4Ki --seconds 60 \
        --no-reference > client.log 2>&1 &
    client=$!
    check "failover: both functions of both ranks are taken" within 60 running
    grows "failover: frames over the first adapter" of_functions "$a0" "$a1"
    grows "failover: frames over the second adapter" of_functions "$b0" "$b1"
    ip link set "$nic_a" down
    ip link set "$nic_b" down
    grows "failover: both adapters down, over the kernel's link" of_link
    ip link set "$nic_b" up
    ip link set "$nic_a" up
    check "failover: both adapters up, and the kernel's link is quiet" within 40 quiet_link
    grows "failover: frames over the first adapter again" of_functions "$a0" "$a1"
    grows "failover: frames over the second adapter again" of_functions "$b0" "$b1"
    began=$(now_ms)
    check "taken away: the function is free" timeout 30 bash -c "echo $b0 > $devices/$b0/driver/unbind"
    took=$(($(now_ms) - began))
    if [ $took -lt 2000 ]; then ok "taken away: after $took ms"; else failed "taken away" "after $took ms"; fi
    if wait $client; then ok "failover: done"; else failed "failover: done" "exit $?: $(tail -n 4 client.log)"; fi
    tail -n 14 client.log
    says "failover: every message came once, whole and in order" "$(< client.log)" ' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
    served failover
    bind "$b0"
}

now_ms() { local up; read -r up _ < /proc/uptime; up=${up/./}; echo $((${up#0} * 10)); }
# Both ranks have both of their functions.
running() { [ "$(ls -l $(pidof doorbell | sed 's|[0-9]*|/proc/&/fd|g') | grep -c vfio-device)" -ge 4 ]; }
# Next to nothing goes over the kernel's link.
quiet_link() { local before; kill -0 $client || return; before=$(of_link); sleep 1; [ $(($(of_link) - before)) -lt 50 ]; }

# A killed process leaves a function that the next one can use at once.
killed() {
    serve h1 10.80.0.2:0 --rail igbvf:"$a1"
    at h0 doorbell pingpong --connect "$address" --key-file key --rail igbvf:"$a0" --sizes 64 --seconds 60 --no-reference \
        > client.log 2>&1 &
    client=$!
    sleep 4
    kill -KILL $(pidof doorbell)
    wait $client 2> /dev/null
    wait $server 2> /dev/null
    serve h1 10.80.0.2:0 --rail igbvf:"$a1"
    measured "killed: the next one" doorbell pingpong --rail igbvf:"$a0" --verify --sizes 64 --samples 50
    served "killed: the next one"
}

# verdict WHAT STEP PATTERN: the verdict of `doorbell doctor` on the first function: the last step, its fix in $fix.
verdict() {
    said=$(doorbell doctor igbvf:"$a0" 2>&1)
    says "doctor, $1" "$said" "$2"
    fix=$(doorbell doctor --fix igbvf:"$a0" 2> /dev/null)
}

# Its verdict is true, and its fix repairs the cause.
diagnosed() {
    verdict "bound to the kernel's driver" 'driver.*igbvf'
    # All modules are loaded, and there is no index of them.
    bash -c "$(sed 's/modprobe vfio-pci/true/' <<< "$fix")"
    check "doctor: doing what it said binds it" test "$(basename "$(readlink $devices/"$a0"/driver)")" = vfio-pci
    verdict "bound to vfio-pci" 'frame.*answered a request for its hardware address through the rings'
    says "doctor: the interrupt" "$said" 'interrupt.*came by its eventfd'
    says "doctor: the link" "$said" 'link .*up, 1000 Mb/s'
    says "doctor: nothing was stopped" "$said" 'iommu-faults.*none of this device'
    ip link set "$nic_a" down
    verdict "the physical function is down" "$nic_a\) is down"
    bash -c "$fix"
    check "doctor: doing what it said brings it up" within 10 has_flag_up "$nic_a"
    within 20 answers
    verdict "up again" 'frame.*answered a request for its hardware address through the rings'
}

has_flag_up() { ip link show "$1" | grep -q '[<,]UP[,>]'; }
answers() { doorbell doctor igbvf:"$a0" | grep -q 'answered a request'; }

# A device that accesses memory that was not mapped for it is stopped by the IOMMU, and the process gets an error.
stopped() {
    if said=$(igbvf-lab bad-dma "$a0" 2>&1); then ok "a wrong address: stopped"; else failed "a wrong address: stopped" "exit $?: $said"; fi
    echo "$said"
    says "a wrong address: told" "$said" '^stopped: DMAR: .*Request device'
    verdict "after a wrong address" 'iommu-faults.*stopped this device [0-9]+ times'
    says "doctor: it works all the same" "$said" 'frame.*answered a request'
}

made
diagnosed
of_a_set
without_calls
between_functions
with_the_kernel
killed
stopped
failover
finish
