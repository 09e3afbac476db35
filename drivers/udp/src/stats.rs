//! Counters of a rail.

/// Counters of a rail since it was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Frames sent to peers.
    pub sent: u64,
    /// System calls that sent them.
    pub send_calls: u64,
    /// Runs of frames sent in one piece (`UDP_SEGMENT`).
    pub sent_runs: u64,
    /// Runs that the kernel or the device refused in one piece; their frames were sent one by one.
    pub runs_refused: u64,
    /// Frames received from peers.
    pub received: u64,
    /// Those of opened peers received on the rail's own sockets instead of the peer's.
    pub received_shared: u64,
    /// System calls that received something.
    pub receive_calls: u64,
    /// Runs of frames received in one piece (`UDP_GRO`).
    pub received_runs: u64,
    /// Frames from senders that have not been opened; they are delivered without a peer.
    pub strangers: u64,
    /// Frames discarded because they reached a peer's new socket before it was connected.
    pub strays: u64,
    /// Received frames discarded because they are longer than our MTU allows.
    pub too_long: u64,
    /// Frames dropped because the path MTU is smaller (`EMSGSIZE`).
    pub above_path_mtu: u64,
    /// Path MTU reports of routers; `UdpRail::path_limit` returns the limit.
    pub path_answers: u64,
    /// Frames dropped because they could not be sent: no route, no link, a firewall.
    pub unsendable: u64,
    /// "Port unreachable" answers of peers (`ECONNREFUSED`).
    pub refused: u64,
    /// Times that the kernel's send buffer was full; the frames were sent later.
    pub send_full: u64,
    /// Peers that share the rail's own sockets, because all others were taken or the system refused one.
    pub unconnected: u64,
}

impl UdpStats {
    /// Iterates over the counters with their names, in the order of declaration.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent", self.sent),
            ("send_calls", self.send_calls),
            ("sent_runs", self.sent_runs),
            ("runs_refused", self.runs_refused),
            ("received", self.received),
            ("received_shared", self.received_shared),
            ("receive_calls", self.receive_calls),
            ("received_runs", self.received_runs),
            ("strangers", self.strangers),
            ("strays", self.strays),
            ("too_long", self.too_long),
            ("above_path_mtu", self.above_path_mtu),
            ("path_answers", self.path_answers),
            ("unsendable", self.unsendable),
            ("refused", self.refused),
            ("send_full", self.send_full),
            ("unconnected", self.unconnected),
        ]
        .into_iter()
    }

    /// Adds the counters of both halves.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            send_calls: self.send_calls + other.send_calls,
            sent_runs: self.sent_runs + other.sent_runs,
            runs_refused: self.runs_refused + other.runs_refused,
            received: self.received + other.received,
            received_shared: self.received_shared + other.received_shared,
            receive_calls: self.receive_calls + other.receive_calls,
            received_runs: self.received_runs + other.received_runs,
            strangers: self.strangers + other.strangers,
            strays: self.strays + other.strays,
            too_long: self.too_long + other.too_long,
            above_path_mtu: self.above_path_mtu + other.above_path_mtu,
            path_answers: self.path_answers + other.path_answers,
            unsendable: self.unsendable + other.unsendable,
            refused: self.refused + other.refused,
            send_full: self.send_full + other.send_full,
            unconnected: self.unconnected + other.unconnected,
        }
    }
}
