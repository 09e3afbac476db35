# Two machines on three wires, each a guest of its own: this one is `a`, and drives the other.

# at a|b COMMAND...: runs it on that host.
at() { local host=$1; shift; if [ $host = a ]; then "$@"; else there "$(printf '%q ' "$@")"; fi; }
# in_shell_of_b WORDS: in the shell that keeps the variables of what runs there.
in_shell_of_b() { there "$@"; }
on_a=
on_b=
nic() { echo eth$2; }
device() { echo rxe$2; }

hosts() {
    meet || finish
    doorbell key key > /dev/null
    in_shell_of_b "base64 -d > key <<< $(base64 key | tr -d '\n'); chmod 600 key"
    check "b has the key" at b test -s key
}
parted() { there complaints; leave; }
