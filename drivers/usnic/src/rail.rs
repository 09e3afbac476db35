//! The function while it is open: its link, its queues, and the owner of its filters.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_fabric::caps::Estimate;
use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::Mac;
use doorbell_fabric::name::RailName;
use doorbell_fabric::time::Time;
use doorbell_packet::{
    Both, Gone, Halves, Nic, PacketRail, PacketRx, PacketStats, PacketTx, Parts, State, Verdict,
};
use doorbell_vfio::{Claim, Device};

use crate::bringup;
use crate::config::UsnicConfig;
use crate::flow_steering::Trouble;
use crate::health::{self, Health, Running};
use crate::layout::Layout;
use crate::notify::News;
use crate::open::{self, Held};
use crate::restart::{Ending, Restart};
use crate::rx::Queues;
use crate::sleep::Sleep;
use crate::stats::UsnicStats;
use crate::wq::SendRing;

/// The most functions of the same adapter whose addresses are kept.
const BESIDE_MOST: usize = 256;

/// Datagrams over the queues of a VIC's usNIC function. See the crate's documentation.
pub type UsnicRail = PacketRail<Usnic>;
pub(crate) type UsnicTx = PacketTx<SendRing>;
pub(crate) type UsnicRx = PacketRx<Queues>;

/// A rail over a device that is open, or modelled; its name only selects which address of `config` is its
/// own, and which number it has at its physical function.
///
/// # Errors
/// Those of [`PacketRail::open`].
pub fn over(name: &RailName, config: &UsnicConfig, claim: Claim) -> Result<UsnicRail, RailError> {
    PacketRail::build(name, || {
        open::open(name, config, &open::plan(name, config)?, claim)
    })
}

/// A function that is open.
pub struct Usnic {
    config: UsnicConfig,
    address: Ipv4Addr,
    mac: Mac,
    sleep: Sleep,
    layout: Layout,
    /// `None` after the end.
    held: Option<Held>,
    /// The way back to running queues, where they do not run.
    restart: Option<Restart>,
    /// The way out, once the rail has ended.
    ending: Option<Ending>,
    /// The threads that still release a physical function, after that.
    leaving: Option<JoinHandle<()>>,
    health: Health,
    /// Functions of the same adapter, as announced by the agent.
    beside: Vec<(Ipv4Addr, Mac)>,
    resources: [u32; 4],
}

impl Usnic {
    /// Over a device whose queues are off.
    pub(crate) fn new(
        config: &UsnicConfig,
        address: Ipv4Addr,
        (held, sleep): (Held, Sleep),
        layout: Layout,
        resources: [u32; 4],
    ) -> Self {
        Self {
            config: config.clone(),
            address,
            mac: [0; 6],
            sleep,
            layout,
            held: Some(held),
            restart: None,
            ending: None,
            leaving: None,
            health: Health::new(config.mtu),
            beside: Vec::new(),
            resources,
        }
    }

    /// Turns the queues on, waiting for each step; returns the hardware address.
    pub(crate) fn start(&mut self, (tx, rx): Halves<'_, Self>) -> Result<Mac, Trouble> {
        let Some(held) = &mut self.held else {
            return Ok(self.mac);
        };
        let parts = bringup::Parts { tx, rx, held };
        open::finish(parts, (self.address, self.config.port))?;
        self.mac = open::mac(held, &self.config)?;
        // The state of the link when the rail is opened.
        self.health.first(held);
        self.introduce();
        tx.is_down = !self.is_up();
        Ok(self.mac)
    }

    /// Announces our addresses to the agent, for the functions beside this one.
    fn introduce(&mut self) {
        if let Some(held) = &mut self.held {
            held.steering.introduce(self.address, self.mac);
        }
    }

    /// Returns what the function or its physical one reports of the link; `None` where neither does.
    #[must_use]
    pub fn news(&self) -> Option<News> {
        self.health.news()
    }

    /// Returns why the queues do not run, where they do not: the last step that failed.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.restart.as_ref().and_then(Restart::trouble)
    }

    /// Returns what to do about [`trouble`](Self::trouble).
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.restart.as_ref().and_then(Restart::fix)
    }

    /// Whether ARP requests for our address reach us.
    #[must_use]
    pub fn has_arp(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.has_arp)
    }

    /// Whether an interrupt arrives; raises one, and waits that long at most. `None` where there are none.
    /// Not while the rail sleeps.
    pub fn check_interrupt(&self, limit: Duration) -> Option<bool> {
        let held = self.held.as_ref().filter(|_| self.sleep.count() > 0)?;
        Some(self.sleep.check(&held.claim, limit))
    }

    /// Returns what the function has: work queues, receive queues, completion queues, interrupts.
    #[must_use]
    pub fn resources(&self) -> [u32; 4] {
        self.resources
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

    /// The end begins: nothing is posted or taken any more.
    fn end(&mut self, (tx, rx): Halves<'_, Self>) {
        (tx.is_off, rx.is_off) = (true, true);
        let restart = self.restart.take();
        if self.ending.is_none() && self.held.is_some() {
            self.ending = Some(Ending::new(restart));
        }
    }

    /// A step of the way out: queues off, as far as the device obeys soon, and what was steered taken away;
    /// then it is given back.
    fn go_out(&mut self, (tx, rx): Halves<'_, Self>) {
        if let (Some(held), Some(ending)) = (&mut self.held, &mut self.ending)
            && ending.step(tx, rx, held)
        {
            self.release((tx, rx), false);
        }
    }

    fn release(&mut self, (tx, rx): Halves<'_, Self>, waits: bool) {
        let Some(held) = self.held.take() else { return };
        self.ending = None;
        tx.release();
        rx.release();
        rx.queues.release();
        self.sleep.release();
        self.leaving = held.leave(waits);
    }

    /// The queues run.
    fn begin_anew(&mut self, (tx, rx): Halves<'_, Self>) -> Mac {
        self.restart = None;
        (tx.is_off, rx.is_off) = (false, false);
        if let Some(held) = &mut self.held {
            self.health.begin(held);
            let mac = held.own_mac(&self.config);
            if let Some(mac) = mac.filter(|mac| *mac != self.mac) {
                self.mac = mac;
                self.introduce();
            }
        }
        tx.is_down = !self.is_up();
        self.mac
    }

    /// Whether registers may be touched: not while the function is reset.
    fn may_touch(&self) -> bool {
        !self.restart.as_ref().is_some_and(Restart::is_resetting)
            && !self.ending.as_ref().is_some_and(Ending::is_resetting)
    }
}

impl Nic for Usnic {
    const KIND: &'static str = "usnic";
    const ABOUT: &'static str = "queues of a VIC's usNIC function";
    const NO_GATEWAY: &'static str = "it is in another network, and usnic.gateway is not set";
    /// The latency is a guess: nothing here was measured.
    const ESTIMATE: Estimate = Estimate {
        latency_ns: 5_000,
        bandwidth: 1_250_000_000,
    };

    type Config = UsnicConfig;
    type Ring = SendRing;
    type Queues = Queues;
    type Stats = UsnicStats;

    /// Opens the function of the name, `usnic:` and the PCI address of one that is bound to vfio-pci, or
    /// `usnic:model/DIR/vf0`. It is reset.
    fn open(name: &RailName, config: &UsnicConfig) -> Result<Parts<Self>, RailError> {
        let (claim, plan) = open::claim(name, config, open::plan(name, config)?)?;
        open::open(name, config, &plan, claim)
    }

    fn state(&self) -> State {
        match &self.restart {
            _ if self.held.is_none() => State::Closed,
            _ if self.ending.is_some() => State::Leaving,
            Some(restart) => State::Resetting(restart.due()),
            None => State::Running,
        }
    }

    fn is_up(&self) -> bool {
        self.state() == State::Running && self.health.is_up()
    }

    /// Link, queues and agent.
    fn look(&mut self, now: Time, (tx, rx): Halves<'_, Self>) -> Verdict {
        let is_over = self.sleep.is_over();
        let Some(held) = &mut self.held else {
            return Verdict::Gone;
        };
        // The memory of a model that has ended stays mapped, and shows nothing of that.
        if is_over || held.claim.device().is_gone() {
            return Verdict::Gone;
        }
        let state = match &self.restart {
            None => Running::Yes,
            Some(restart) if restart.is_resetting() => Running::Untouchable,
            Some(_) => Running::No,
        };
        let was_steered = self.health.is_steered();
        match self.health.look(tx, rx, held, state) {
            health::Verdict::Well => {}
            health::Verdict::Gone => return Verdict::Gone,
            health::Verdict::Restart => {
                (tx.is_off, rx.is_off) = (true, true);
                if self.restart.is_none() {
                    self.restart = Some(Restart::new(now));
                }
            }
        }
        if let Some(restart) = self
            .restart
            .as_mut()
            .filter(|_| !was_steered && self.health.is_steered())
        {
            restart.hasten(now);
        }
        tx.is_down = !self.is_up();
        Verdict::Present
    }

    /// A step towards running queues, where they do not run, or of the way out.
    fn reset(&mut self, now: Time, (tx, rx): Halves<'_, Self>) -> Result<Option<Mac>, Gone> {
        if self.ending.is_some() {
            self.go_out((tx, rx));
            return Ok(None);
        }
        let (Some(held), Some(restart)) = (&mut self.held, &mut self.restart) else {
            return Ok(None);
        };
        let socket = (self.address, self.config.port);
        match restart.step(now, (tx, rx, held, &self.sleep), socket) {
            Ok(false) => Ok(None),
            Ok(true) => Ok(Some(self.begin_anew((tx, rx)))),
            Err(_) => Err(Gone),
        }
    }

    fn arm(&mut self) {
        self.sleep.arm(self.may_touch());
    }

    fn disarm(&mut self) {
        self.sleep.disarm(self.may_touch());
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.sleep.fd()
    }

    /// Where it waits, it does so for the end of a reset that is under way, for the steps of leaving (a
    /// second at most, counted from where they began), and for a physical function that this process has to
    /// be closed.
    fn leave(&mut self, (tx, rx): Halves<'_, Self>, waits: bool) -> bool {
        self.end((tx, rx));
        if !waits {
            self.go_out((tx, rx));
            return self.held.is_none() && self.leaving.as_ref().is_none_or(JoinHandle::is_finished);
        }
        if let (Some(held), Some(ending)) = (&mut self.held, &mut self.ending) {
            ending.finish(tx, rx, held);
        }
        self.release((tx, rx), true);
        if let Some(leaving) = self.leaving.take() {
            // Each of its steps has an end.
            let _ = leaving.join();
        }
        true
    }

    fn how(&self, (tx, rx): Both<'_, Self>) -> String {
        let Some(held) = &self.held else {
            return "closed".to_owned();
        };
        let registers = match tx.rings.first() {
            Some(ring) if ring.is_mapped() => "registers mapped",
            _ => "registers by messages",
        };
        let queues = match rx.queues.done.len() {
            2 => "3 completion queues",
            _ => "2 completion queues",
        };
        let sums = if self.config.checksum {
            "checksums by the device"
        } else {
            "checksums here"
        };
        let commands = if held.own.devcmd.is_ring() {
            "commands by devcmd2"
        } else {
            "commands by devcmd"
        };
        let (way, steering) = (held.claim.device().backend(), held.steering.how());
        format!("{way}, {registers}, {commands}, {queues}, {steering}, {sums}")
    }

    fn stats(&self, common: PacketStats, (_, rx): Both<'_, Self>) -> UsnicStats {
        UsnicStats {
            cut: rx.queues.cut,
            spoilt: rx.queues.spoilt,
            rung_again: self.health.rung_again,
            torn: self.health.torn,
            ..common.into()
        }
    }

    /// Returns what the agent reports of functions beside this one, which are found so where ARP is not.
    fn hint(&mut self) -> Option<(IpAddr, Mac)> {
        let (ip, mac) = self.held.as_mut()?.steering.neighbour()?;
        self.beside.retain(|(other, _)| *other != ip);
        if self.beside.len() < BESIDE_MOST {
            self.beside.push((ip, mac));
        }
        Some((ip.into(), mac))
    }

    fn hinted(&self, next_hop: IpAddr) -> Option<Mac> {
        let found = self.beside.iter().find(|(ip, _)| *ip == next_hop)?;
        Some(found.1)
    }
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<UsnicRail>();
};
