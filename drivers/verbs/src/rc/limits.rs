//! Sizes of a rail: what is set, against what the device can do.

use std::sync::Arc;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

use super::core::Sizes;
use super::device::Device;
use super::link::{DEPTH, Retries};
use super::{onesided, ring};
use crate::config::VerbsConfig;
use crate::discover;
use crate::error::VerbsError;
use crate::ports::{Port, Tree};
use crate::sys::{Completions, DeviceAttr, Open, PIECES, ReliablePair, ReliableSizes, SharedQueue};

/// Receives of a rail at its beginning.
const FIRST_RECEIVES: usize = 64;
/// The number of retries that some devices take for "for ever".
const FOR_EVER: u8 = 7;

impl Sizes {
    /// Those of a configuration.
    pub(crate) fn of(config: &VerbsConfig) -> Self {
        Self {
            slot: config.slot,
            sends: config.send,
            receives: (FIRST_RECEIVES.min(config.receive), config.receive),
            zero_copy: config.zero_copy,
            retries: Retries {
                count: config.retry,
                timeout: config.timeout,
            },
            keep_alive: config.keep_alive,
            one_sided: onesided::Sizes {
                register: config.register,
                get_from: config.get_from,
                ..onesided::Sizes::default()
            },
            ring: ring::Sizes {
                uses: config.ring,
                peers: config.ring_peers,
                ..ring::Sizes::default()
            },
            ..Self::default()
        }
    }

    /// Checks them against what the device and its port report; returns what is used.
    ///
    /// # Errors
    /// The first setting that the device cannot follow, with its limit.
    pub(crate) fn within(
        mut self,
        name: &RailName,
        open: &Open,
        port: &Port,
        tree: &Tree,
    ) -> Result<Self, RailError> {
        let attributes = open
            .attributes()
            .map_err(|error| discover::rejected_by(name, &error))?;
        let limits = Limits::of(open.name(), &attributes, port.attributes.max_msg_sz)
            .map_err(|error| discover::rejected_by(name, &error))?;
        limits.check(name, &self)?;
        if self.retries.count == FOR_EVER && is_soft(open, tree) {
            return Err(unusable(
                name,
                format!(
                    "verbs.retry is {FOR_EVER}, which soft-RoCE takes for \"for ever\": a peer that is gone would \
                     never be reported"
                ),
                "set it to 0 to 6",
            ));
        }
        if limits.pieces.is_some_and(|most| most < PIECES) {
            // A body that lies elsewhere needs a second piece.
            (self.pieces, self.zero_copy) = (1, usize::MAX);
        }
        Ok(self)
    }
}

/// Whether a device is soft-RoCE: its provider is, or the kernel names the interface below it.
fn is_soft(open: &Open, tree: &Tree) -> bool {
    let provider = open.provider();
    let name = provider.as_ref().and_then(|file| file.file_name()?.to_str());
    name.is_some_and(|name| name.starts_with("librxe")) || tree.has_parent(open.name())
}

/// What a device can do; `None` where it reports nothing, and it shows when an object is made.
#[derive(Clone, Debug)]
struct Limits {
    device: String,
    /// Entries of a queue pair, of a shared receive queue, and of a completion queue.
    requests: Option<usize>,
    receives: Option<usize>,
    completions: Option<usize>,
    /// Bytes of a message, and of a registration.
    message: Option<usize>,
    memory: Option<u64>,
    /// Pieces of a request.
    pieces: Option<usize>,
}

impl Limits {
    fn of(device: &str, attributes: &DeviceAttr, message: u32) -> Result<Self, VerbsError> {
        let numbers = [
            ("max_qp_wr", attributes.max_qp_wr),
            ("max_srq", attributes.max_srq),
            ("max_srq_wr", attributes.max_srq_wr),
            ("max_srq_sge", attributes.max_srq_sge),
            ("max_sge", attributes.max_sge),
            ("max_cqe", attributes.max_cqe),
        ];
        if let Some((what, number)) = numbers.into_iter().find(|(_, number)| *number < 0) {
            return Err(VerbsError::Nonsense {
                device: device.to_owned(),
                what: format!("{what} of {number}"),
            });
        }
        let reported = |number: i32| usize::try_from(number).ok().filter(|number| *number > 0);
        Ok(Self {
            device: device.to_owned(),
            requests: reported(attributes.max_qp_wr),
            receives: reported(attributes.max_srq_wr),
            completions: reported(attributes.max_cqe),
            message: (message > 0).then_some(message as usize),
            memory: (attributes.max_mr_size > 0).then_some(attributes.max_mr_size),
            pieces: reported(attributes.max_sge),
        })
    }

    fn check(&self, name: &RailName, sizes: &Sizes) -> Result<(), RailError> {
        let device = &self.device;
        let above = |value: usize, most: Option<usize>| most.filter(|most| value > *most);
        if let Some(most) = above(DEPTH + 1, self.requests) {
            return Err(unusable(
                name,
                format!(
                    "queue pairs of {device} have {most} entries at most, and a connection needs {}",
                    DEPTH + 1
                ),
                "use its rail of datagrams (:ud)",
            ));
        }
        let queues = [
            (
                "verbs.receive",
                sizes.receives.1,
                self.receives,
                "shared receive queues",
            ),
            (
                "verbs.receive",
                sizes.receives.1,
                self.completions,
                "completion queues",
            ),
        ];
        for (setting, value, most, what) in queues {
            if let Some(most) = above(value, most) {
                return Err(too_many(name, (setting, value), (what, device, most), most));
            }
        }
        if let Some(most) = above(Device::entries(sizes), self.completions) {
            let what = ("completion queues", device.as_str(), most);
            let fits = most / (Device::entries(sizes) / sizes.sends).max(1);
            return Err(too_many(name, ("verbs.send", sizes.sends), what, fits));
        }
        if let Some(most) = above(sizes.slot, self.message) {
            return Err(unusable(
                name,
                format!(
                    "verbs.slot is {}, and messages of {device} have {most} bytes at most",
                    sizes.slot
                ),
                "set verbs.slot lower, or use its rail of datagrams (:ud)",
            ));
        }
        let bytes = (sizes.sends * sizes.slot) as u64;
        if let Some(most) = self.memory.filter(|most| bytes > *most) {
            return Err(unusable(
                name,
                format!(
                    "verbs.send times verbs.slot is {bytes} bytes, and registrations of {device} have {most} at most"
                ),
                "set verbs.send or verbs.slot lower",
            ));
        }
        Ok(())
    }
}

fn too_many(
    name: &RailName,
    (setting, value): (&str, usize),
    (what, device, most): (&str, &str, usize),
    fits: usize,
) -> RailError {
    let remedy = match fits.checked_ilog2().map(|log| 1usize << log) {
        Some(fits @ 64..) => format!("set {setting} to a power of two from 64 to {fits}"),
        _ => "use its rail of datagrams (:ud)".to_owned(),
    };
    unusable(
        name,
        format!("{setting} is {value}, and {what} of {device} have {most} entries at most"),
        remedy,
    )
}

/// Makes a queue pair, and ends it: how many bytes go with a request, which no query of the library reports.
///
/// # Errors
/// If the device makes no such queue pair.
pub(crate) fn inline(
    queue: &Arc<SharedQueue>,
    (sent, received): (&Arc<Completions>, &Arc<Completions>),
    wanted: &Sizes,
) -> Result<usize, VerbsError> {
    let sizes = ReliableSizes {
        sends: DEPTH,
        inline: wanted.inline,
        pieces: wanted.pieces,
    };
    Ok(ReliablePair::new(queue, (sent, received), sizes)?.inline())
}
