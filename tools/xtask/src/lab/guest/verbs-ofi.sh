# Unmodified clients of libfabric over the provider: Debian's fi_info, fi_pingpong and Open MPI, with the libfabric that they bring.

export FI_PROVIDER_PATH=/lab/bin
# Debian makes this link when it installs the package, which no guest does: libfabric is linked to the library.
ln -sf libpsm1/libpsm_infinipath.so.1.16 /usr/lib/libpsm_infinipath.so.1

# The launcher of Open MPI wants a name of this machine.
hostname lab
echo '127.0.0.1 localhost lab' > /etc/hosts

packets() { cat /sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts; }

# ofi_info WHAT RAILS COMMAND...: the provider has a domain of just these rails.
ofi_info() {
    said=$("${@:3}" env FI_DOORBELL_RAILS=$2 FI_LOG_LEVEL=warn fi_info -p doorbell 2>&1)
    says "$1: fi_info lists the rails" "$said" "^ *domain: ${2//,/\\+}\$"
}

# fi_pingpong checks the bytes of every message (-c). Two of them meet over TCP, at this port.
ping_of() { echo env FI_DOORBELL_RAILS=$1 fi_pingpong -p doorbell -e rdm -c "${@:2}"; }
waits_at_port() { $prefix ss -tln | grep -q ':47592 '; }
# ofi_serves RAILS WORDS...: one waits for the other, in $server; $prefix runs it on its host.
ofi_serves() {
    timeout 200 $prefix $(ping_of "$@") > server.log 2>&1 &
    server=$!
    within 30 waits_at_port
}
# pings WHAT RAILS WORDS...: between two processes of this host.
pings() {
    ofi_serves "${@:2}"
    measured "$1" $(ping_of "${@:2}") 127.0.0.1
    served "$1"
    # Its table has been shown; what else it printed has a reason.
    grep -v '^[b0-9]' server.log
}

# mpi_of RAILS TEST: two ranks of Open MPI do a test of mpi.c, all of it over the provider.
mpi_of() {
    local use="--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include doorbell"
    # One-sided operations, too: Debian's Open MPI would choose UCX for them.
    use="$use --mca btl ofi,self --mca btl_ofi_provider_include doorbell --mca osc ^ucx"
    FI_DOORBELL_RAILS=$1 timeout -k 5 150 mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 2 \
        --mca btl_tcp_if_include lo --mca mpi_yield_when_idle 1 $use mpi $2
}
