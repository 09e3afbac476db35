//! The virtual function: how it is started, reset and released, and the part of the physical one in that.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use doorbell_fabric::caps::Estimate;
use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::Mac;
use doorbell_fabric::name::RailName;
use doorbell_fabric::time::Time;
use doorbell_inet::StaticAddress;
use doorbell_packet::{Both, Gone, Halves, Nic, PacketRail, PacketStats, Parts, State, Verdict};
use doorbell_vfio::{Claim, Device, Put};

use crate::config::IgbvfConfig;
use crate::layout::Layout;
use crate::mailbox::{Handshake, Silence};
use crate::open::{self, Held};
use crate::regs::{
    CONTROL_RESET, GONE, STATUS_FULL_DUPLEX, STATUS_LINK_UP, STATUS_SPEED_100, STATUS_SPEED_1000,
};
use crate::ring::SendRing;
use crate::rx::Queues;
use crate::sleep::Sleep;

/// Time after which a physical function that did not answer gets another request.
const AGAIN: Duration = Duration::from_millis(200);
/// Between two steps of an agreement: the physical function answers in an interrupt of its own.
const STEP: Duration = Duration::from_micros(500);
/// Bits of the status, and the speeds that they mean.
const SPEEDS: [(u32, u32); 2] = [(STATUS_SPEED_1000, 1000), (STATUS_SPEED_100, 100)];

/// Datagrams over the rings of an 82576's virtual function. See the crate's documentation.
pub type IgbvfRail = PacketRail<Igbvf>;

/// A rail over a device that is open, or modelled; the PCI address in its name only selects which address of
/// `config` is its own.
///
/// # Errors
/// Those of [`PacketRail::open`].
pub fn over(name: &RailName, config: &IgbvfConfig, claim: Claim) -> Result<IgbvfRail, RailError> {
    PacketRail::build(name, || {
        open::open(name, config, &open::plan(name, config)?, claim)
    })
}

/// What the physical function has to do with us.
pub(crate) enum Agreed {
    /// The physical function has turned the queues on.
    Yes,
    /// A request to it is under way.
    Asking(Box<Handshake>),
    /// The physical function did not answer, and gets another request at this time.
    Later(Time),
}

/// A virtual function that is open.
pub struct Igbvf {
    pub(crate) address: StaticAddress,
    pub(crate) mtu: usize,
    pub(crate) checksum: bool,
    pub(crate) sleep: Sleep,
    pub(crate) layout: Layout,
    /// `None` after the end.
    pub(crate) held: Option<Held>,
    pub(crate) agreed: Agreed,
    /// The hardware address that it takes where the physical function gives none.
    pub(crate) own: Mac,
    pub(crate) link: bool,
    pub(crate) next_step: Time,
}

impl Igbvf {
    /// The link's speed in Mb/s and whether it is full duplex, as the device has it; `None` where the link is
    /// down.
    pub fn speed(&self) -> Option<(u32, bool)> {
        let status = self.held.as_ref()?.general.status.read();
        if status == GONE || status & STATUS_LINK_UP == 0 {
            return None;
        }
        let known = SPEEDS.iter().find(|(bit, _)| status & bit != 0);
        Some((
            known.map_or(10, |(_, speed)| *speed),
            status & STATUS_FULL_DUPLEX != 0,
        ))
    }

    /// Whether an interrupt of the receive queue arrives; raises one, and waits that long at most. Not while
    /// the rail sleeps.
    pub fn check_interrupt(&self, limit: Duration) -> bool {
        self.sleep.check(limit)
    }

    /// The device below, for those who look for what is wrong with it; `None` after the end.
    pub fn device(&self) -> Option<&dyn Device> {
        Some(self.held.as_ref()?.claim.device())
    }

    /// The bus address and length of the memory that the device reaches.
    pub fn bus_memory(&self) -> Option<(u64, usize)> {
        let held = self.held.as_ref()?;
        Some((held.slab.iova(), self.layout.bytes()))
    }

    /// The queues are as after power-on; false where they do not turn on.
    fn restart(&mut self, (tx, rx): Halves<'_, Self>) -> bool {
        let Some(held) = &self.held else { return false };
        let posted = tx.posted();
        tx.rings.iter_mut().for_each(|ring| ring.restart(posted));
        rx.queues.restart();
        if !open::start(tx, rx, &held.slab, &self.layout) {
            return false;
        }
        self.sleep.begin();
        if self.sleep.armed {
            self.sleep.arm();
        }
        tx.is_off = false;
        true
    }
}

impl Nic for Igbvf {
    const KIND: &'static str = "igbvf";
    const ABOUT: &'static str = "rings of an 82576's virtual function";
    const NO_GATEWAY: &'static str = "it is in another network, and igbvf.gateway is not set";
    const ESTIMATE: Estimate = Estimate {
        latency_ns: 10_000,
        bandwidth: 125_000_000,
    };

    type Config = IgbvfConfig;
    type Ring = SendRing;
    type Queues = Queues;
    type Stats = PacketStats;

    /// Opens the virtual function that the name gives the PCI address of, which is bound to vfio-pci. It is
    /// reset.
    fn open(name: &RailName, config: &IgbvfConfig) -> Result<Parts<Self>, RailError> {
        let plan = open::plan(name, config)?;
        let claim = open::claim(name, &plan)?;
        open::open(name, config, &plan, claim)
    }

    fn state(&self) -> State {
        match self.agreed {
            _ if self.held.is_none() => State::Closed,
            Agreed::Yes => State::Running,
            Agreed::Asking(_) => State::Resetting(self.next_step),
            Agreed::Later(_) => State::Resetting(Time::NEVER),
        }
    }

    /// Whether the link is up by the physical function's word, and it has turned our queues on.
    fn is_up(&self) -> bool {
        self.link && self.state() == State::Running
    }

    /// Link and mailbox.
    fn look(&mut self, now: Time, (tx, _): Halves<'_, Self>) -> Verdict {
        let is_over = self.sleep.is_over();
        let Some(held) = &mut self.held else {
            return Verdict::Gone;
        };
        let status = held.general.status.read();
        if is_over || status == GONE {
            return Verdict::Gone;
        }
        self.link = status & STATUS_LINK_UP != 0;
        if matches!(self.agreed, Agreed::Yes) {
            let heard = held.mailbox.read_events();
            if heard.gone {
                return Verdict::Gone;
            }
            if heard.reset || heard.stranger {
                self.agreed = Agreed::Later(now);
                tx.is_off = true;
            }
        }
        Verdict::Present
    }

    /// A step towards an agreement with the physical function, where there is none.
    fn reset(&mut self, now: Time, halves: Halves<'_, Self>) -> Result<Option<Mac>, Gone> {
        let Some(held) = &mut self.held else {
            return Ok(None);
        };
        match &mut self.agreed {
            Agreed::Yes => {}
            Agreed::Later(at) => {
                if now >= *at {
                    held.general
                        .control
                        .put(held.general.control.read() | CONTROL_RESET);
                    let handshake = open::handshake(self.own, &self.address, self.mtu);
                    self.agreed = Agreed::Asking(Box::new(handshake));
                }
            }
            Agreed::Asking(_) if now < self.next_step => {}
            Agreed::Asking(handshake) => match handshake.step(&mut held.mailbox) {
                Ok(None) => self.next_step = now + STEP,
                Ok(Some(mac)) => {
                    if self.restart(halves) {
                        self.agreed = Agreed::Yes;
                        return Ok(Some(mac));
                    }
                    self.agreed = Agreed::Later(now + AGAIN);
                }
                Err(Silence::Gone) => return Err(Gone),
                Err(Silence::NoAnswer | Silence::Refused) => self.agreed = Agreed::Later(now + AGAIN),
            },
        }
        Ok(None)
    }

    fn arm(&mut self) {
        self.sleep.arm();
    }

    fn disarm(&mut self) {
        self.sleep.disarm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.sleep.fd()
    }

    fn leave(&mut self, (tx, rx): Halves<'_, Self>, _: bool) -> bool {
        tx.release();
        rx.release();
        rx.queues.release();
        self.sleep.release();
        if let Some(held) = self.held.take() {
            held.leave();
        }
        true
    }

    fn how(&self, (tx, _): Both<'_, Self>) -> String {
        let path = self
            .held
            .as_ref()
            .map(|held| held.claim.device().backend().to_string());
        let queues = match tx.rings.len() {
            2 => "two send queues",
            _ => "one send queue",
        };
        let sums = if self.checksum {
            "checksums by the device"
        } else {
            "checksums here"
        };
        format!(
            "{}, {queues}, {sums}",
            path.unwrap_or_else(|| "closed".to_owned())
        )
    }

    fn stats(&self, common: PacketStats, _: Both<'_, Self>) -> PacketStats {
        common
    }
}

impl Held {
    /// The device reaches no memory from here on, and then is given back.
    fn leave(self) {
        let Self {
            general,
            mailbox,
            slab,
            claim,
        } = self;
        drop((general, mailbox));
        // If it does not obey, the IOMMU keeps it from the memory one line further.
        let _ = claim.close();
        drop(slab);
    }
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<IgbvfRail>();
};
