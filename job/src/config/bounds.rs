//! Bounds of values beyond those of their types. They are checked when a text is read, so that the error can
//! name the text and its origin, and once more before a world is made, for values that code has set.

use std::collections::BTreeMap;
use std::time::Duration;

use doorbell_btl::BtlError;
use doorbell_inet::StaticAddress;
use doorbell_oob::lines::tcp::{Pattern, Ports};
use doorbell_shm::ShmConfig;

use super::drivers::btl_config;
use super::value::{ControlThreads, ControlWait, Size, Value};
use super::{Config, ControlTransport, FACTS, Origin, ProgressCore};
use crate::error::Error;
use crate::types::MOST_RANKS;

/// Fewest bytes of `pml.unexpected`: many envelopes must fit.
const LEAST_UNEXPECTED: usize = 1 << 10;
/// Most bytes of `pml.unexpected`: the PML's hard bound is sixteen times this, in a field of 36 bits.
const MOST_UNEXPECTED: usize = 4 << 30;
/// Most pieces of lent memory: the shm rail exposes as many pieces at a time.
const MOST_PIECES: u32 = 1024;
/// Most commands in the mailbox of a dedicated thread.
const MOST_COMMANDS: u32 = 1 << 20;

/// The settings that both ends of a protocol depend on. The PML's credits follow from `pml.unexpected`;
/// `btl.window` bounds what is in flight in both directions; a frame without the expected MAC is dropped; and
/// the control plane exists at all ranks or at none. All other settings concern one direction or one process:
/// each sender has its own eager limit and protocol, each shm lane carries its own geometry, and each pair of
/// ranks finds out whether pulls work.
const AGREED: [&str; 4] = ["pml.unexpected", "btl.window", "btl.frame_mac", "control.mode"];
/// The same, where there is a control plane: over different transports, ranks do not reach each other.
const AGREED_OF_CONTROL: [&str; 1] = ["control.transports"];

impl Config {
    /// Returns the settings that must be the same at all ranks of a job, each with its two names.
    pub fn agreed(&self) -> BTreeMap<String, String> {
        let all = FACTS.iter().zip(self.all());
        let of_control = *self.control.mode.get();
        let is_agreed =
            |name: &str| AGREED.contains(&name) || (of_control && AGREED_OF_CONTROL.contains(&name));
        all.filter(|(fact, _)| is_agreed(fact.name))
            .map(|(fact, setting)| (format!("{} ({})", fact.name, fact.variable), setting.show()))
            .collect()
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::BadValue`] for the first value that is out of bounds.
    pub fn verify(&self) -> Result<(), Error> {
        for (at, fact) in FACTS.iter().enumerate() {
            if let Some(expected) = self.out_of_bounds(fact.name) {
                return Err(self.refuse(at, expected));
            }
        }
        if *self.control.mode.get() {
            self.verify_control()?;
        }
        self.btl_out_of_bounds().map_or(Ok(()), Err)
    }

    /// Checks the settings of a control plane that are bounds of each other: those of the ranks, or of the
    /// daemons of `doorbell run --hosts`, which have one whatever `control.mode` is.
    ///
    /// # Errors
    /// [`Error::BadValue`] for the first that does not go with the others.
    pub fn verify_control(&self) -> Result<(), Error> {
        let control = &self.control;
        let transports = control.transports.get();
        let names_core = *control.core.get() != ProgressCore::Auto;
        let refused = [
            (
                names_core && *control.wait.get() == ControlWait::Block,
                "control.core",
                "auto where the thread sleeps: only one that spins has a core of its own; set control.wait = \
                 spin (DOORBELL_CONTROL_WAIT)",
            ),
            (
                !control.rails.get().0.is_empty() && !transports.has(ControlTransport::Rail),
                "control.rails",
                "no rails where none are used: add the transport, as in control.transports = tcp,rail \
                 (DOORBELL_CONTROL_TRANSPORTS)",
            ),
            (
                *control.threads.get() == ControlThreads::Nic && !transports.has(ControlTransport::Tcp),
                "control.threads",
                "one without the transport tcp, since rails are on the control plane's one thread: add tcp \
                 to control.transports (DOORBELL_CONTROL_TRANSPORTS)",
            ),
        ];
        let refused = refused.into_iter().find(|(is_bad, ..)| *is_bad);
        let error = refused.and_then(|(_, name, expected)| self.unfit(name, expected));
        error.map_or(Ok(()), Err)
    }

    /// Returns the error of the first setting of the BTL that is out of bounds, with the others as they are.
    /// Some are bounds of each other, so this is checked only when all are read.
    fn btl_out_of_bounds(&self) -> Option<Error> {
        let Err(BtlError::Setting { setting, bounds, .. }) = btl_config(self).validate() else {
            return None;
        };
        let at = FACTS
            .iter()
            .position(|fact| fact.name.strip_prefix("btl.") == Some(setting))?;
        let set = |at: usize| *self.all()[at].came_from() != Origin::Default;
        if set(at) {
            return Some(self.refuse(at, bounds.to_owned()));
        }
        // The default is not to blame: the error names the setting that was changed and does not go with it.
        let defaults = Self::default();
        let bounded = (0..FACTS.len()).filter(|other| FACTS[*other].name.starts_with("btl.") && set(*other));
        let alone_with = |other: &usize| {
            let mut changed = defaults.clone();
            let _ = changed.all_mut()[*other].read(&self.all()[*other].show(), Origin::Code);
            btl_config(&changed).validate().is_err()
        };
        let to_blame = bounded
            .clone()
            .find(alone_with)
            .or_else(|| bounded.clone().next())?;
        let beside = self.all()[at].show();
        Some(self.refuse(
            to_blame,
            format!("one that goes with btl.{setting} = {beside}, which must be {bounds}"),
        ))
    }

    /// Returns the error of a value that is within its bounds, but does not suit the situation.
    pub fn unfit(&self, name: &str, expected: &str) -> Option<Error> {
        let at = FACTS.iter().position(|fact| fact.name == name)?;
        Some(self.refuse(at, expected.to_owned()))
    }

    fn refuse(&self, at: usize, expected: String) -> Error {
        let setting = self.all()[at];
        Error::BadValue {
            name: FACTS[at].name,
            given: setting.show(),
            origin: setting.came_from().to_string(),
            expected,
        }
    }

    /// Returns what is expected instead of the present value of `name`; `None` when the value is within
    /// bounds.
    pub(super) fn out_of_bounds(&self, name: &str) -> Option<String> {
        let (job, shm, udp) = (&self.job, &self.shm, &self.udp);
        match name {
            "job.size" => {
                let refused = job.size.get().is_some_and(|size| size == 0 || size > MOST_RANKS);
                refused.then(|| format!("a number of ranks from 1 to {MOST_RANKS}"))
            }
            "job.rank" => {
                let refused = job.rank.get().is_some_and(|rank| rank >= MOST_RANKS);
                refused.then(|| format!("a rank from 0 to {}", MOST_RANKS - 1))
            }
            "progress.mailbox" => {
                let commands = *self.progress.mailbox.get();
                let refused = commands == 0 || commands > MOST_COMMANDS;
                refused.then(|| format!("a number of commands from 1 to {MOST_COMMANDS}"))
            }
            "lend.pieces" => {
                let pieces = *self.lend.pieces.get();
                let refused = pieces == 0 || pieces > MOST_PIECES;
                refused.then(|| format!("a number of pieces from 1 to {MOST_PIECES}"))
            }
            "control.nics" => {
                let text = self.control.nics.get().as_deref().unwrap_or_default();
                let bad = text
                    .split(',')
                    .any(|text| text.trim().parse::<Pattern>().is_err());
                (bad && !text.is_empty()).then(|| {
                    "names of interfaces (`eth0`, `eth*`) and networks (`10.0.0.0/8`), separated by commas".to_owned()
                })
            }
            "control.ports" => {
                let text = self.control.ports.get().as_deref();
                let bad = text.is_some_and(|text| text.parse::<Ports>().is_err());
                bad.then(|| "a port, or two with a hyphen, as in `7200-7299`, or `any`".to_owned())
            }
            "control.grace" => {
                let grace = *self.control.grace.get();
                let bounds = Duration::from_millis(10)..=Duration::from_secs(3600);
                (!bounds.contains(&grace)).then(|| "a time from 10 ms to 1 h".to_owned())
            }
            "acm.timeout" => {
                let timeout = *self.acm.timeout.get();
                let bounds = Duration::from_millis(1)..=Duration::from_secs(600);
                (!bounds.contains(&timeout)).then(|| "a time from 1 ms to 10 min".to_owned())
            }
            "pml.unexpected" => {
                let bytes = self.pml.unexpected.get().0;
                let refused = !(LEAST_UNEXPECTED..=MOST_UNEXPECTED).contains(&bytes);
                let (least, most) = (Size(LEAST_UNEXPECTED).show(), Size(MOST_UNEXPECTED).show());
                refused.then(|| format!("a size from {least} to {most}"))
            }
            "shm.cells" => {
                let (least, most) = ShmConfig::CELLS;
                let refused = shm.cells.get().map(|cells| cells as usize);
                refused
                    .filter(|cells| !fits(*cells, (least, most)))
                    .map(|_| format!("a power of two from {least} to {most}, or `auto`"))
            }
            "shm.data" => {
                let (least, most) = ShmConfig::DATA;
                let refused = shm.data.get().map(|data| data.0);
                let (low, high) = (Size(least).show(), Size(most).show());
                refused
                    .filter(|data| !fits(*data, (least, most)))
                    .map(|_| format!("a power of two from {low} to {high}, or `auto`"))
            }
            "udp.port" => outside(*udp.port.get(), 0, 65_534, "a port"),
            "udp.pairs" => outside(*udp.pairs.get(), 1, 32_767, "a number of pairs"),
            "udp.mtu" => {
                let refused = udp.mtu.get().filter(|mtu| !(576..=65_535).contains(&mtu.0));
                refused.map(|_| "a packet size from 576 to 65535 bytes, or `auto`".to_owned())
            }
            "udp.connected" => outside(*udp.connected.get(), 0, 16_384, "a number of peers"),
            "udp.receive_buffer" => kernel_buffer(*udp.receive_buffer.get()),
            "udp.send_buffer" => kernel_buffer(*udp.send_buffer.get()),
            "udp.busy_poll" => udp
                .busy_poll
                .get()
                .and_then(|us| outside(us, 1, 1_000_000, "microseconds")),
            "xdp.queue" => (self.xdp.queue.get()).and_then(|queue| outside(queue, 0, 65_535, "a queue")),
            "xdp.receive_ring" => frames(*self.xdp.receive_ring.get()),
            "xdp.send_ring" => frames(*self.xdp.send_ring.get()),
            "xdp.busy_poll" => {
                (self.xdp.busy_poll.get()).and_then(|us| outside(us, 1, 1_000_000, "microseconds"))
            }
            "igbvf.receive_ring" => ring(*self.igbvf.receive_ring.get()),
            "igbvf.send_ring" => ring(*self.igbvf.send_ring.get()),
            "verbs.send" => queue(*self.verbs.send.get()),
            "verbs.receive" => queue(*self.verbs.receive.get()),
            "verbs.gid_index" => (self.verbs.gid_index.get())
                .and_then(|index| outside(index, 0, 255, "a place in the table of GIDs")),
            "verbs.service_level" => outside(*self.verbs.service_level.get(), 0, 15, "a service level"),
            "verbs.traffic_class" => outside(*self.verbs.traffic_class.get(), 0, 255, "a traffic class"),
            "verbs.pkey" => (self.verbs.pkey.get().as_deref())
                .filter(|text| partition(text).is_none())
                .map(|_| "the key of a partition from 0x0001 to 0xffff, except 0x8000".to_owned()),
            "verbs.slot" => (!fits(self.verbs.slot.get().0, (4 << 10, 64 << 10)))
                .then(|| "a power of two from 4 KiB to 64 KiB".to_owned()),
            "verbs.zero_copy" => (!(512..=1 << 20).contains(&self.verbs.zero_copy.get().0))
                .then(|| "a size from 512 B to 1 MiB".to_owned()),
            "verbs.register" => (!(4 << 10..=1 << 20).contains(&self.verbs.register.get().0))
                .then(|| "a size from 4 KiB to 1 MiB".to_owned()),
            "verbs.get_from" => (!(4 << 10..=64 << 20).contains(&self.verbs.get_from.get().0))
                .then(|| "a size from 4 KiB to 64 MiB".to_owned()),
            "verbs.retry" => outside(*self.verbs.retry.get(), 0, 7, "a number of retries"),
            "verbs.timeout" => outside(*self.verbs.timeout.get(), 1, 20, "an exponent of two"),
            "verbs.keep_alive" => {
                let bounds = Duration::from_millis(10)..=Duration::from_secs(60);
                (!bounds.contains(self.verbs.keep_alive.get()))
                    .then(|| "a time from 10 ms to 1 min".to_owned())
            }
            "verbs.ring_peers" => outside(*self.verbs.ring_peers.get(), 1, 256, "a number of peers"),
            "usnic.address" => {
                let is_function = |name: &str| doorbell_usnic::Object::parse(name).is_ok();
                let text = self.usnic.address.get().as_deref().unwrap_or_default();
                (!StaticAddress::is_well_formed(text, is_function, true)).then(|| {
                    "an IPv4 address of a host with its network, as 10.0.0.5/24, or one for each function, between blanks or commas, as \
                     `0000:3b:00.1=10.0.0.5/24 0000:3b:00.2=10.0.0.6/24`"
                        .to_owned()
                })
            }
            "usnic.receive_ring" => ring(*self.usnic.receive_ring.get()),
            "usnic.send_ring" => ring(*self.usnic.send_ring.get()),
            "usnic.function" => (self.usnic.function.get())
                .and_then(|number| outside(number, 0, 255, "a function's number at its physical one")),
            "usnic.mac" => (self.usnic.mac.get().as_deref())
                .filter(|text| mac(text).is_none())
                .map(|_| "a unicast hardware address, such as 02:00:00:00:00:01".to_owned()),
            _ => None,
        }
    }
}

/// Parses the key of a partition: a number, also a hexadecimal one.
pub(crate) fn partition(text: &str) -> Option<u16> {
    let key = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    (key & 0x7fff != 0).then_some(key)
}

/// Parses a unicast hardware address.
pub(crate) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

fn ring(entries: u32) -> Option<String> {
    (!fits(entries as usize, (64, 4096))).then(|| "a power of two from 64 to 4096".to_owned())
}

fn queue(entries: u32) -> Option<String> {
    (!fits(entries as usize, (64, 16_384))).then(|| "a power of two from 64 to 16384".to_owned())
}

fn frames(ring: u32) -> Option<String> {
    (!fits(ring as usize, (64, 32_768))).then(|| "a power of two from 64 to 32768".to_owned())
}

fn outside(value: u32, least: u32, most: u32, what: &str) -> Option<String> {
    (value < least || value > most).then(|| format!("{what} from {least} to {most}"))
}

fn kernel_buffer(size: Size) -> Option<String> {
    (!(4 << 10..=1 << 30).contains(&size.0)).then(|| "a size from 4 KiB to 1 GiB".to_owned())
}

fn fits(value: usize, (least, most): (usize, usize)) -> bool {
    value.is_power_of_two() && (least..=most).contains(&value)
}
