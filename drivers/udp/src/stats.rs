//! What a rail has done, and why it dropped what it dropped.

/// Totals of a rail since it was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Frames that the kernel took.
    pub sent: u64,
    /// System calls that sent them.
    pub send_calls: u64,
    /// Runs of frames that the kernel took in one piece (`UDP_SEGMENT`).
    pub sent_runs: u64,
    /// Runs that the kernel or the device refused in one piece; their frames went one by one.
    pub runs_refused: u64,
    /// Frames that were shown, or wait to be.
    pub received: u64,
    /// Those of opened peers that came over the rail's own sockets, not over one of the peer's.
    pub received_shared: u64,
    /// System calls that received something.
    pub receive_calls: u64,
    /// Runs of frames that came in one piece (`UDP_GRO`).
    pub received_runs: u64,
    /// Frames from addresses of no opened peer; they are shown, without a peer.
    pub strangers: u64,
    /// Frames that had come to a peer's new socket before it was connected; thrown away.
    pub strays: u64,
    /// Received frames above our MTU; thrown away.
    pub too_long: u64,
    /// Frames that the kernel refused to send because the path's MTU is smaller (`EMSGSIZE`); gone.
    pub above_path_mtu: u64,
    /// Answers of routers that the path to a peer takes shorter frames only; `UdpRail::path_limit` tells how long.
    pub path_answers: u64,
    /// Frames that could not be sent for another reason: no route, no link, a firewall; gone.
    pub unsendable: u64,
    /// "Port unreachable" answers of peers (`ECONNREFUSED`).
    pub refused: u64,
    /// Times that the kernel's send buffer was full; the frames went later.
    pub send_full: u64,
    /// Peers that share the rail's own sockets, because all others were taken or the system refused one.
    pub unconnected: u64,
}

impl UdpStats {
    /// Every count with its name, in the order of declaration.
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

    /// Both halves together.
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
