//! The rows: what the design promises, in the order in which they are shown, and how each is measured.

use crate::probes::{Bound, Budget};

pub(super) const NEAR: Budget = Budget {
    name: "8 B half round trip, shm, near",
    unit: "x",
    limit: 1.3,
    bound: Bound::AtMost,
    how: "tag-matched, inline, two processes on two cores, mean over rounds of 1,000 exchanges, as a multiple of the \
          bare cache-line exchange measured before and after each slice; near: 36 to 100 ns",
};
pub(super) const FAR: Budget = Budget {
    name: "8 B half round trip, shm, far",
    unit: "x",
    limit: 1.15,
    bound: Bound::AtMost,
    how: "the same while the two cores are far apart: the bare exchange takes more than 100 ns",
};
pub(super) const SIBLING: Budget = Budget {
    name: "8 B half round trip, shm, sibling",
    unit: "x",
    limit: 0.0,
    bound: Bound::None,
    how: "the same while the two cores are hardware threads of one core: the bare exchange takes up to 36 ns",
};
pub(super) const DEDICATED: Budget = Budget {
    name: "8 B half round trip, dedicated",
    unit: "exchanges",
    limit: 4.0,
    bound: Bound::AtMost,
    how: "half round trip in dedicated mode less the one inline, in bare exchanges (half round trips of one line)",
};
pub(super) const MAILBOX: Budget = Budget {
    name: "dedicated: the mailbox alone",
    unit: "exchanges",
    limit: 4.0,
    bound: Bound::AtMost,
    how: "a command through the mailbox to a thread on another core and its completion by one cache line, in bare \
          exchanges (half round trips of one line) between the same cores",
};
pub(super) const RATE_NEAR: Budget = Budget {
    name: "message rate, 8 B, near",
    unit: "msg/s",
    limit: 0.0,
    bound: Bound::None,
    how: "shm, one pair, one direction, blocking sends and receives",
};
pub(super) const PUT: Budget = Budget {
    name: "8 B put, half round trip, shm",
    unit: "x",
    limit: 1.5,
    bound: Bound::AtMost,
    how: "a put of a Portals interface into the other's memory, whose counting event is polled, to and fro, as a multiple of \
          the bare cache-line exchange measured before and after each slice, near or far",
};
pub(super) const REQUEST: Budget = Budget {
    name: "AM request and reply, half, shm",
    unit: "x",
    limit: 3.0,
    bound: Bound::AtMost,
    how: "half of a Short request with the Short reply of its handler, 8 B as two arguments, the same way",
};
pub(super) const REQUEST_RATE: Budget = Budget {
    name: "AM Mediums of 64 B, shm",
    unit: "msg/s",
    limit: 0.0,
    bound: Bound::None,
    how: "Medium requests in one direction, as many under way as there are credits",
};
/// Why rates and bandwidths that are promised beside the peers are not judged here.
pub(super) const BESIDE_PEERS: &str = "what is promised is more than the best installed peer carries in the same way and run: \
                                       `doorbell-lab compare-peers` measures both and judges it";
pub(super) const RATE_FAR: Budget = Budget {
    name: "message rate, 8 B, far",
    ..RATE_NEAR
};
pub(super) const RATE_POSTED: Budget = Budget {
    name: "message rate, 8 B, posted",
    how: "the same with 512 non-blocking sends and receives outstanding and waited for together, near or far",
    ..RATE_NEAR
};
pub(super) const BANDWIDTH: Budget = Budget {
    name: "bandwidth, 1 MiB, shm",
    unit: "x",
    limit: 0.9,
    bound: Bound::AtLeast,
    how: "64 outstanding, out of ordinary memory and into it, as a share of what one memcpy per message of that size allows \
          on one core, measured before and after each slice",
};
pub(super) const BANDWIDTH_REGIONS: Budget = Budget {
    name: "bandwidth, 1 MiB, shm, regions",
    how: "the same out of regions and into them",
    ..BANDWIDTH
};
pub(super) const PML: Budget = Budget {
    name: "PML, one 8 B message",
    unit: "ns",
    limit: 100.0,
    bound: Bound::AtMost,
    how: "send, and receive with match and completion, over a rail that costs nothing; best of three rounds of 200,000",
};
pub(super) const STACK: Budget = Budget {
    name: "BTL + PML, one 8 B message",
    how: "ping-pong by calls that wait, two ranks on one thread over a datagram rail that only copies frames: sent, \
          received, matched and acknowledged; what that rail takes by itself for the same frames is subtracted; best of \
          thirty rounds of 20,000",
    ..PML
};
pub(super) const STACK_POSTED: Budget = Budget {
    name: "BTL + PML, 8 B, posted",
    how: "the same in one direction, received by requests that are posted, completed and tested",
    ..STACK
};
pub(super) const HOTEL: Budget = Budget {
    name: "hotel, 4,096 rooms, in and out",
    unit: "ns",
    limit: 10.0,
    bound: Bound::AtMost,
    how: "check-in and check-out of one guest while 4,095 others stay, deadlines 200 to 460 µs away; best of \
          fifteen rounds of 200,000",
};
pub(super) const HOTEL_TICK: Budget = Budget {
    name: "hotel, 4,096 rooms, empty tick",
    limit: 0.0,
    bound: Bound::None,
    how: "a tick by which time moves on and nothing expires, with 4,095 guests; it costs only what expires",
    ..HOTEL
};
pub(super) const UDP: Budget = Budget {
    name: "8 B half round trip, udp:lo",
    unit: "x",
    limit: 1.15,
    bound: Bound::AtMost,
    how: "tag-matched, inline, two processes on two cores, mean over rounds of 1,000 exchanges, as a multiple of a raw \
          busy ping-pong over connected UDP sockets between the same cores, measured before and after it",
};
pub(super) const RING: Budget = Budget {
    name: "SPSC ring, one value",
    unit: "x",
    limit: 0.97,
    bound: Bound::AtLeast,
    how: "push and pop on one thread, as a share of rtrb's rate, in turn with it, the best of five turns each",
};
pub(super) const RING_SLICE: Budget = Budget {
    name: "SPSC ring, 64 values",
    how: "64 values pushed and popped by slice, as a share of rtrb's rate, in turn with it",
    ..RING
};
pub(super) const POSTED: Budget = Budget {
    name: "matching, 100,000 posted",
    unit: "x",
    limit: 2.0,
    bound: Bound::AtMost,
    how: "a message with a fully given tag finds its entry, and the entry is posted again: time with 100,000 entries \
          over time with one; 16 of the tags are used, again and again, so that what takes time is the search",
};
pub(super) const UNEXPECTED: Budget = Budget {
    name: "matching, 100,000 unexpected",
    how: "a receive with a fully given tag finds its kept message, and the message is kept again: time with 100,000 \
          over time with one; 16 of the tags are used",
    ..POSTED
};
pub(super) const POSTED_ALL: Budget = Budget {
    name: "matching, 100,000 posted, all",
    bound: Bound::None,
    how: "the same for posted entries with all tags used, in an order that no cache can guess: the misses of touching \
          every entry are in it",
    ..POSTED
};
pub(super) const UNEXPECTED_ALL: Budget = Budget {
    name: "matching, 100,000 unexpected, all",
    how: "the same for kept messages with all tags used",
    ..POSTED_ALL
};
pub(super) const OVERLAP: Budget = Budget {
    name: "overlap, 4 MiB, dedicated",
    unit: "of 1",
    limit: 0.0,
    bound: Bound::None,
    how: "share of a 4 MiB receive that is hidden behind as much computation; 1 is all of it",
};
/// A raw half round trip between two hosts, and what a rail makes of it.
pub(super) const NET_UDP: Budget = Budget {
    name: "8 B half round trip, udp",
    how: "two hosts (network namespaces, one virtual link), tag-matched, inline, mean over rounds of 1,000 exchanges, as a \
          multiple of a raw busy ping-pong over connected UDP sockets between the same two, measured before and after it",
    ..UDP
};
pub(super) const NET_XDP: Budget = Budget {
    name: "8 B half round trip, xdp",
    how: "the same past the kernel, as a multiple of a raw busy ping-pong over the queues of the same interfaces",
    ..UDP
};
const NET_PUT: Budget = Budget {
    name: "8 B put, udp",
    unit: "x PML",
    limit: 0.0,
    bound: Bound::None,
    how: "half round trip of a put of a Portals interface between the same two hosts, as a multiple of that of a tagged \
          message over the same rail before and after it",
};
const NET_REQUEST: Budget = Budget {
    name: "AM request and reply, half, udp",
    how: "half of a Short request with its reply, 8 B as two arguments, the same way",
    ..NET_PUT
};
/// By the kind of rail, as [`super::two_hosts::LAYERS`] has them.
pub(super) const NET_LAYERS: [[Budget; 2]; 2] = [
    [NET_PUT, NET_REQUEST],
    [
        Budget {
            name: "8 B put, xdp",
            ..NET_PUT
        },
        Budget {
            name: "AM request and reply, half, xdp",
            ..NET_REQUEST
        },
    ],
];
pub(super) const NET_RATE: Budget = Budget {
    name: "message rate, 64 B, network",
    unit: "msg/s",
    limit: 1e6,
    bound: Bound::Above,
    how: "the same two hosts, one pair, one direction, blocking sends and receives; the better rail counts",
};
pub(super) const NET_BANDWIDTH_UDP: Budget = Budget {
    name: "bandwidth, 1 MiB, udp",
    unit: "B/s",
    limit: 0.0,
    bound: Bound::None,
    how: "the same two hosts, 64 outstanding; `doorbell-lab compare-peers --network` sets it beside the installed peers",
};
pub(super) const NET_BANDWIDTH_XDP: Budget = Budget {
    name: "bandwidth, 1 MiB, xdp",
    ..NET_BANDWIDTH_UDP
};
/// Percent of the frames that are lost, each way.
pub(super) const LOSSES: [f64; 2] = [1.0, 5.0];
pub(super) const GOODPUT: [Budget; LOSSES.len()] = [
    Budget {
        name: "goodput, 1 MiB, 1 % loss",
        unit: "x",
        limit: 0.8,
        bound: Bound::AtLeast,
        how: "two hosts with a switch between them that drops 1 % of what goes either way, 64 outstanding, as a share of \
              what the same rail carries while nothing is dropped; the better rail counts",
    },
    Budget {
        name: "goodput, 1 MiB, 5 % loss",
        unit: "x",
        limit: 0.8,
        bound: Bound::AtLeast,
        how: "the same with 5 %",
    },
];
const MEAN: Budget = Budget {
    name: "64 B mean, 1 % loss, udp",
    unit: "x",
    limit: 2.0,
    bound: Bound::AtMost,
    how: "mean half round trip under the same loss, as a multiple of that while nothing is dropped",
};
pub(super) const MEAN_UDP: [Budget; LOSSES.len()] = [
    MEAN,
    Budget {
        name: "64 B mean, 5 % loss, udp",
        ..MEAN
    },
];
pub(super) const MEAN_XDP: [Budget; LOSSES.len()] = [
    Budget {
        name: "64 B mean, 1 % loss, xdp",
        ..MEAN
    },
    Budget {
        name: "64 B mean, 5 % loss, xdp",
        ..MEAN
    },
];
pub(super) const IDLE: Budget = Budget {
    name: "memory per idle peer",
    unit: "B",
    limit: 1024.0,
    bound: Bound::AtMost,
    how: "BTL and PML, over a driver that remembers nothing: by what a process of its own grows when it knows 10,000 peers \
          instead of one, its resident set or its data segment, whichever grows more",
};

/// What others judge, and why it is not judged here.
pub(super) const ELSEWHERE: [(Budget, &str); 4] = [
    (
        Budget {
            name: "idle peer's credit, am",
            unit: "B",
            limit: 40.0,
            bound: Bound::AtMost,
            how: "credit state of active messages",
        },
        "the compiler judges it: `doorbell-am` is not built with more; docs/credits.md has what it comes to",
    ),
    (
        Budget {
            name: "beside every installed peer",
            unit: "x",
            limit: 1.0,
            bound: Bound::AtMost,
            how: "latency below every installed peer's, message rate above, bandwidth at least 0.97 of the best one's",
        },
        "it takes the peers' own programs, turn by turn: `doorbell-lab compare-peers --shm --network` measures and judges them",
    ),
    (
        Budget {
            name: "failover: lost, late",
            unit: "messages",
            limit: 0.0,
            bound: Bound::AtMost,
            how: "nothing lost or delivered twice while links break, and stalls of at most 3 x the detection bound",
        },
        "links have to break for minutes under two processes: `cargo xtask rails` does that and judges it",
    ),
    (
        Budget {
            name: "failover: instructions",
            unit: "%",
            limit: 3.0,
            bound: Bound::AtMost,
            how: "what three rails add to a small message while nothing fails",
        },
        "instructions are counted by callgrind: `cargo xtask instructions` does that and judges it",
    ),
];
