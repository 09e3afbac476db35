//! Sizes and switches of rails over queue pairs.

use std::ops::RangeInclusive;
use std::time::Duration;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

/// Fewest and most entries of a queue.
const ENTRIES: RangeInclusive<usize> = 64..=16_384;

/// Bytes of a slot: the largest path MTU fits, and its length into 16 bits.
const SLOT: RangeInclusive<usize> = 4 << 10..=64 << 10;
const ZERO_COPY: RangeInclusive<usize> = 512..=1 << 20;
/// Bytes above which borrowed memory is registered for its operation: that of a copy, which has a slot.
const REGISTER: RangeInclusive<usize> = 4 << 10..=1 << 20;
const GET_FROM: RangeInclusive<usize> = 4 << 10..=64 << 20;
/// The number of the time-out: up to 4.3 s.
const TIMEOUT: RangeInclusive<u8> = 1..=20;
const KEEP_ALIVE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
const RING_PEERS: RangeInclusive<usize> = 1..=256;

/// Whether peers of reliable connections write short messages into memory that polls look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingUse {
    /// Where the library reports that the device writes data in order.
    #[default]
    Auto,
    /// On every device: what is written is checked, whatever order it comes in.
    On,
    /// Everything goes over queues.
    Off,
}

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Frames of the data channel that can wait to be sent: a power of two. The priority channel has a
    /// quarter. Of reliable connections: slots to send from.
    pub send: usize,
    /// Frames of the data channel that can wait to be received: a power of two. The priority channel has a
    /// quarter. Of reliable connections: slots to receive into at most; they begin with 64.
    pub receive: usize,
    /// Received frames that can be kept out of the queues at a time.
    pub spare: usize,
    /// The place in the port's table of the one GID that is used; `None`: all that can be, best first.
    pub gid_index: Option<u8>,
    /// The service level of InfiniBand, or the priority of Ethernet.
    pub service_level: u8,
    /// The DSCP and ECN bits of packets.
    pub traffic_class: u8,
    /// The key of the partition that is used; `None`: the first of which the port is a full member, else its
    /// first.
    pub partition: Option<u16>,
    /// Bytes of a slot of reliable connections, which is what one send carries at most: a power of two, the
    /// same at all ranks.
    pub slot: usize,
    /// The length in bytes from which on a region is sent from where it lies.
    pub zero_copy: usize,
    /// The length in bytes above which memory that is borrowed for a one-sided operation is registered for
    /// it; what is not longer is copied.
    pub register: usize,
    /// The length in bytes from which on a get is preferred to messages.
    pub get_from: usize,
    /// How often the device repeats a packet of a reliable connection that is not acknowledged.
    pub retry: u8,
    /// After how long it does: 4.096 µs times two to the power of this.
    pub timeout: u8,
    /// How long a reliable connection may be idle before the peer is tried.
    pub keep_alive: Duration,
    /// Whether peers of reliable connections that send much get a ring for short messages.
    pub ring: RingUse,
    /// Peers that have one at a time, at most.
    pub ring_peers: usize,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            send: 256,
            receive: 1024,
            spare: 256,
            gid_index: None,
            service_level: 0,
            traffic_class: 0,
            partition: None,
            slot: 8 << 10,
            zero_copy: 4 << 10,
            register: 64 << 10,
            get_from: 32 << 10,
            retry: 6,
            timeout: 14,
            keep_alive: Duration::from_millis(500),
            ring: RingUse::Auto,
            ring_peers: 16,
        }
    }
}

impl VerbsConfig {
    /// Checks the values.
    pub(crate) fn check(&self, name: &RailName) -> Result<(), RailError> {
        for (setting, value) in [("verbs.send", self.send), ("verbs.receive", self.receive)] {
            if !ENTRIES.contains(&value) || !value.is_power_of_two() {
                return Err(unusable(
                    name,
                    format!("{setting} is {value}"),
                    "set it to a power of two from 64 to 16384",
                ));
            }
        }
        let wrong = |setting: &str, value: String, remedy: &str| {
            Err(unusable(
                name,
                format!("{setting} is {value}"),
                format!("set it to {remedy}"),
            ))
        };
        if self.service_level > 15 {
            return wrong("verbs.service_level", self.service_level.to_string(), "0 to 15");
        }
        if let Some(key) = self.partition.filter(|key| key & 0x7fff == 0) {
            return wrong(
                "verbs.pkey",
                format!("{key:#06x}"),
                "the key of a partition, 0x0001 to 0xffff",
            );
        }
        if !SLOT.contains(&self.slot) || !self.slot.is_power_of_two() {
            let remedy = "a power of two from 4 KiB to 64 KiB";
            return wrong("verbs.slot", self.slot.to_string(), remedy);
        }
        if !ZERO_COPY.contains(&self.zero_copy) {
            return wrong("verbs.zero_copy", self.zero_copy.to_string(), "512 B to 1 MiB");
        }
        if !REGISTER.contains(&self.register) {
            return wrong("verbs.register", self.register.to_string(), "4 KiB to 1 MiB");
        }
        if !GET_FROM.contains(&self.get_from) {
            return wrong("verbs.get_from", self.get_from.to_string(), "4 KiB to 64 MiB");
        }
        if self.retry > 7 {
            return wrong("verbs.retry", self.retry.to_string(), "0 to 7");
        }
        if !TIMEOUT.contains(&self.timeout) {
            return wrong("verbs.timeout", self.timeout.to_string(), "1 to 20");
        }
        if !KEEP_ALIVE.contains(&self.keep_alive) {
            let value = format!("{} ms", self.keep_alive.as_millis());
            return wrong("verbs.keep_alive", value, "a time from 10 ms to 1 min");
        }
        if !RING_PEERS.contains(&self.ring_peers) {
            return wrong("verbs.ring_peers", self.ring_peers.to_string(), "1 to 256");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_refused_with_the_range() {
        let refused = |change: &dyn Fn(&mut VerbsConfig)| {
            let mut config = VerbsConfig::default();
            config.check(&"verbs:rxe0:1".parse().unwrap()).unwrap();
            change(&mut config);
            let refused = config.check(&"verbs:rxe0:1".parse().unwrap());
            refused.unwrap_err().to_string()
        };
        type Change = &'static dyn Fn(&mut VerbsConfig);
        let all: [(Change, &str, &str); 17] = [
            (&|config| config.send = 65, "verbs.send is 65", "from 64 to 16384"),
            (
                &|config| config.receive = 32,
                "verbs.receive is 32",
                "from 64 to 16384",
            ),
            (
                &|config| config.service_level = 16,
                "verbs.service_level is 16",
                "0 to 15",
            ),
            (
                &|config| config.partition = Some(0x8000),
                "verbs.pkey is 0x8000",
                "0x0001 to 0xffff",
            ),
            (
                &|config| config.slot = 2048,
                "verbs.slot is 2048",
                "from 4 KiB to 64 KiB",
            ),
            (
                &|config| config.slot = 5000,
                "verbs.slot is 5000",
                "from 4 KiB to 64 KiB",
            ),
            (
                &|config| config.slot = 1 << 17,
                "verbs.slot is 131072",
                "from 4 KiB to 64 KiB",
            ),
            (
                &|config| config.zero_copy = 0,
                "verbs.zero_copy is 0",
                "512 B to 1 MiB",
            ),
            (
                &|config| config.register = 4095,
                "verbs.register is 4095",
                "4 KiB to 1 MiB",
            ),
            (
                &|config| config.register = (1 << 20) + 1,
                "verbs.register is 1048577",
                "4 KiB to 1 MiB",
            ),
            (
                &|config| config.get_from = 0,
                "verbs.get_from is 0",
                "4 KiB to 64 MiB",
            ),
            (&|config| config.retry = 8, "verbs.retry is 8", "0 to 7"),
            (&|config| config.timeout = 0, "verbs.timeout is 0", "1 to 20"),
            (&|config| config.timeout = 21, "verbs.timeout is 21", "1 to 20"),
            (
                &|config| config.keep_alive = Duration::ZERO,
                "verbs.keep_alive is 0 ms",
                "10 ms to 1 min",
            ),
            (
                &|config| config.ring_peers = 0,
                "verbs.ring_peers is 0",
                "1 to 256",
            ),
            (
                &|config| config.ring_peers = 257,
                "verbs.ring_peers is 257",
                "1 to 256",
            ),
        ];
        for (change, what, range) in all {
            let said = refused(change);
            assert!(said.contains(what) && said.contains(range), "{said}");
        }
    }
}
