//! From a function in any state to queues that run, and back: a list of steps, each of which is started and
//! then polled, so that a rail that restarts blocks nothing else.
//!
//! ```text
//!   queues off ─► OPEN, INIT, MAC_ADDR, NOTIFY ─► rings set ─► old queue pairs off, old filters removed ─►
//!   filters ─► queue pairs on ─► receive queues on, then filled ─► send queues on ─► ENABLE
//!
//!   and the end: queues off ─► queue pairs off, filters away ─► DISABLE, NOTIFY with no area, CLOSE
//! ```
//!
//! Receive queues are on before they are filled: future firmware needs that, and today's takes both orders.
//!
//! Sources: libfabric `usd_queues.c` (the order of queues), Linux `usnic_ib_qp_grp.c` (filters first, then
//! QP_ENABLE), DPDK `enic_main.c` (OPEN to ENABLE). That a usNIC function takes OPEN, INIT and ENABLE is
//! unknown `[U]`: see [`VfCommands`](crate::VfCommands).

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use doorbell_fabric::ether::ETHERTYPE_ARP;

use crate::config::VfCommands;
use crate::devcmd::{
    Arguments, CLOSE, Command, DISABLE, ENABLE, INIT, INIT_STATUS, MAC_ADDR, NOTIFY, OPEN, OPEN_STATUS,
    PACKET_FILTER, arguments, unicast_mac,
};
use crate::errno::{Errno, Fault};
use crate::filter::Match;
use crate::flow_steering::{Request, Trouble};
use crate::notify::{NOTIFY_BYTES, NotifyRead};
use crate::open::Held;
use crate::pf::{NO_INTERRUPT, OPEN_KEEPS_CACHES};
use crate::queue::{Side, Turning};
use crate::rail::{UsnicRx, UsnicTx};

/// How long the second half of a two-part command may take, and how long an earlier command is waited for.
const STATUS_LIMIT: Duration = Duration::from_secs(2);
const STATUS_BETWEEN: Duration = Duration::from_millis(1);
const BUSY_LIMIT: Duration = Duration::from_millis(100);
/// The bits of PACKET_FILTER that are used.
const DIRECTED: u64 = 1;
const BROADCAST: u64 = 4;

/// What was known when nothing was installed yet: when it is another later, something was lost in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Since {
    /// The life of what the physical function has installed.
    pub(crate) life: Option<u64>,
    /// How often the link went away, by the function's own word, and by its physical one's.
    pub(crate) link_downs: [Option<u32>; 2],
}

/// A step of the list.
#[derive(Clone, Copy, Debug)]
enum Step {
    Off(Side, usize),
    On(Side, usize),
    /// The way to give commands is there.
    Ready,
    /// Removes what an earlier bring-up installed; the result does not matter.
    Forget(Request),
    Own(Command, [u64; 2]),
    /// The function's own hardware address, if it reports one.
    Mac,
    /// Polls a two-part command until its first result is 0.
    Status(Command),
    Program,
    Steer(Request),
    /// Sends a request that may be refused.
    Wish(Request),
    Fill,
}

/// What a step waits for.
#[derive(Debug)]
enum Doing {
    Turning(Turning),
    Steering,
    /// A ring of commands.
    Ring,
    /// An earlier command, until then.
    Block(Instant),
    Command(Instant),
    /// When a two-part command is next checked for its end, at the first time; the deadline, at the second.
    Again(Instant, Instant),
    /// What becomes of a command without an answer.
    Aftermath(Instant),
}

/// A function on its way.
#[derive(Debug)]
pub(crate) struct Bringup {
    steps: VecDeque<Step>,
    doing: Option<Doing>,
    /// When the second half of a two-part command has to be done.
    until: Option<Instant>,
    policy: VfCommands,
    /// The function has refused a command that was only tried: the others are not.
    is_refused: bool,
    /// While closing: a step that fails does not keep the next one from being taken.
    is_end: bool,
}

/// What the steps are about.
pub(crate) struct Parts<'a> {
    pub(crate) tx: &'a mut UsnicTx,
    pub(crate) rx: &'a mut UsnicRx,
    pub(crate) held: &'a mut Held,
}

impl Bringup {
    /// The steps from any state to running queues, for this socket.
    pub(crate) fn new(held: &mut Held, (address, port): (Ipv4Addr, u16)) -> Self {
        let mut steps = VecDeque::new();
        for pair in 0..2 {
            steps.push_back(Step::Off(Side::Send, pair));
        }
        for pair in 0..2 {
            steps.push_back(Step::Off(Side::Receive, pair));
        }
        held.has_arp = false;
        // An earlier command that was begun belongs to another owner.
        held.own.devcmd.abandon();
        held.filters.append(&mut held.own.orphans);
        held.filters.extend(std::iter::from_fn(|| held.steering.orphan()));
        if held.vf_commands != VfCommands::Skip || held.steering.is_own() {
            steps.push_front(Step::Ready);
        }
        let policy = held.vf_commands;
        if policy != VfCommands::Skip {
            let notify = [held.notify_bus(), NOTIFY_BYTES as u64 | NO_INTERRUPT];
            steps.extend([
                Step::Own(OPEN, [OPEN_KEEPS_CACHES, 0]),
                Step::Status(OPEN_STATUS),
                Step::Own(INIT, [0; 2]),
                Step::Status(INIT_STATUS),
                Step::Mac,
                Step::Own(NOTIFY, notify),
            ]);
        }
        steps.push_back(Step::Program);
        // A queue pair is turned off while its rings are known: a function that was reset has none. Each is
        // forgotten here once it is known to be gone there: a bring-up that fails before that is followed by
        // another one.
        let on = (0..2).filter(|&pair| held.pairs[pair as usize]);
        steps.extend(on.map(|pair| Step::Forget(Request::Disable(pair))));
        let filters = held.filters.iter();
        steps.extend(filters.map(|filter| Step::Forget(Request::Unsteer(*filter))));
        let udp = |pair: u16| Match::Udp {
            address,
            port: port + pair,
        };
        steps.push_back(Step::Steer(Request::Steer(udp(0), 0)));
        steps.push_back(Step::Steer(Request::Steer(udp(1), 1)));
        if held.wants_arp {
            steps.push_back(Step::Wish(Request::Steer(Match::Ethertype(ETHERTYPE_ARP), 0)));
        }
        steps.extend([0, 1].map(|pair| Step::Steer(Request::Enable(pair))));
        steps.extend([0, 1].map(|pair| Step::On(Side::Receive, pair)));
        steps.push_back(Step::Fill);
        steps.extend([0, 1].map(|pair| Step::On(Side::Send, pair)));
        if policy != VfCommands::Skip {
            // Broadcasts are received too: ARP requests are broadcast. In usNIC that is the kernel's
            // business, and filters deliver the rest; that a function without this gets no broadcasts is
            // inferred from its being a command at all [I].
            steps.push_back(Step::Own(PACKET_FILTER, [DIRECTED | BROADCAST, 0]));
            steps.push_back(Step::Own(ENABLE, [0; 2]));
        }
        Self {
            steps,
            doing: None,
            until: None,
            policy,
            is_refused: false,
            is_end: false,
        }
    }

    /// Queues off, no frames steered any more, and the function closed: what is done before a device is
    /// released.
    pub(crate) fn end(held: &mut Held) -> Self {
        let mut this = Self::new(held, (Ipv4Addr::UNSPECIFIED, 0));
        this.steps
            .retain(|step| matches!(step, Step::Off(..) | Step::Forget(_)));
        if held.is_open {
            let none = [0, NO_INTERRUPT];
            let last = [(DISABLE, [0; 2]), (NOTIFY, none), (CLOSE, [0; 2])];
            this.steps
                .extend(last.map(|(command, first)| Step::Own(command, first)));
        }
        this.is_end = true;
        this
    }

    /// Goes on as far as it can without waiting; true at the end.
    pub(crate) fn step(&mut self, parts: &mut Parts<'_>) -> Result<bool, Trouble> {
        while let Some(&step) = self.steps.front() {
            match self.go_on(step, parts) {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(trouble) if self.is_end && !trouble.is_gone() => {}
                Err(trouble) => return Err(trouble),
            }
            self.doing = None;
            self.steps.pop_front();
        }
        Ok(true)
    }

    /// Goes on with one step; true when it is done.
    fn go_on(&mut self, step: Step, parts: &mut Parts<'_>) -> Result<bool, Trouble> {
        if self.doing.is_none() && self.begin(step, parts)? {
            return Ok(true);
        }
        self.look(step, parts)
    }

    /// Begins a step; true where that is all of it.
    fn begin(&mut self, step: Step, parts: &mut Parts<'_>) -> Result<bool, Trouble> {
        let held = &mut *parts.held;
        self.doing = Some(match step {
            Step::Off(side, pair) => Doing::Turning(Turning::off(window(parts, side, pair)?, side)?),
            Step::On(side, pair) => Doing::Turning(Turning::on(window(parts, side, pair)?, side)?),
            Step::Ready => Doing::Ring,
            Step::Program => {
                held.since = since(held);
                program(parts)?;
                return Ok(true);
            }
            Step::Fill => {
                parts.rx.queues.start();
                return Ok(true);
            }
            Step::Own(..) | Step::Status(_) if self.is_refused => return Ok(true),
            Step::Own(..) | Step::Status(_) | Step::Mac => Doing::Block(Instant::now() + BUSY_LIMIT),
            Step::Steer(_) | Step::Wish(_) | Step::Forget(_) if held.own.devcmd.is_busy()? => {
                Doing::Block(Instant::now() + BUSY_LIMIT)
            }
            Step::Steer(request) | Step::Wish(request) => {
                held.pairs = [true; 2];
                held.steering.begin(&mut held.own, request)?;
                Doing::Steering
            }
            Step::Forget(request) => {
                if held.steering.begin(&mut held.own, request).is_err() {
                    return Ok(true);
                }
                Doing::Steering
            }
        });
        Ok(false)
    }

    /// Looks at what is under way; true when it is done.
    fn look(&mut self, step: Step, parts: &mut Parts<'_>) -> Result<bool, Trouble> {
        match (step, &mut self.doing) {
            (Step::Off(side, pair) | Step::On(side, pair), Some(Doing::Turning(turning))) => {
                Ok(turning.poll(window(parts, side, pair)?)?)
            }
            (Step::Steer(request) | Step::Wish(request) | Step::Forget(request), Some(Doing::Steering)) => {
                let held = &mut *parts.held;
                let Some(ended) = held.steering.poll(&mut held.own) else {
                    return Ok(false);
                };
                steered(held, step, request, ended)?;
                Ok(true)
            }
            (_, Some(Doing::Block(until))) => {
                let until = *until;
                self.wait(step, until, parts)
            }
            (_, Some(Doing::Again(next, last))) => {
                if Instant::now() >= *next {
                    let last = *last;
                    self.send(step, parts, last)?;
                }
                Ok(false)
            }
            (_, Some(Doing::Ring)) => match parts.held.own.devcmd.ready() {
                Ok(is_ready) => Ok(is_ready),
                // Without it, nothing of the function's own is tried.
                Err(fault) if self.may_refuse(&fault) => {
                    self.is_refused = true;
                    Ok(true)
                }
                Err(fault) => Err(fault.into()),
            },
            (_, Some(Doing::Aftermath(until))) => {
                let until = *until;
                self.survive(step, until, parts)
            }
            (_, Some(Doing::Command(_))) => match parts.held.own.devcmd.poll() {
                None => Ok(false),
                Some(ended) => self.answered(step, ended, parts),
            },
            _ => Ok(true),
        }
    }

    /// An earlier command of the function's block ends, or does not.
    fn wait(&mut self, step: Step, until: Instant, parts: &mut Parts<'_>) -> Result<bool, Trouble> {
        if parts.held.own.devcmd.is_busy()? {
            return if Instant::now() >= until {
                Err(Fault::Busy.into())
            } else {
                Ok(false)
            };
        }
        match step {
            Step::Own(..) | Step::Status(_) | Step::Mac => {
                let last = *self.until.get_or_insert_with(|| Instant::now() + STATUS_LIMIT);
                self.send(step, parts, last)?;
            }
            _ => {
                self.doing = None;
                return self.begin(step, parts);
            }
        }
        Ok(false)
    }

    fn send(&mut self, step: Step, parts: &mut Parts<'_>, last: Instant) -> Result<(), Trouble> {
        let Some((command, first)) = step.command() else {
            return Ok(());
        };
        if command == NOTIFY {
            // The notify area still has the content of an earlier use.
            parts.held.forget_news();
        }
        parts.held.own.devcmd.begin(command, &arguments(&first))?;
        self.doing = Some(Doing::Command(last));
        Ok(())
    }

    /// Whether the function may refuse this as unsupported: then it is only tried.
    fn may_refuse(&self, fault: &Fault) -> bool {
        fault.is_no() && self.policy == VfCommands::Try
    }

    fn answered(
        &mut self,
        step: Step,
        ended: Result<Arguments, Fault>,
        parts: &mut Parts<'_>,
    ) -> Result<bool, Trouble> {
        let Some((command, _)) = step.command() else {
            return Ok(true);
        };
        let results = match ended {
            Ok(results) => results,
            // Its physical function's counts then.
            Err(fault) if fault.is_no() && command == MAC_ADDR => return Ok(true),
            Err(fault) if self.may_refuse(&fault) => {
                self.is_refused = true;
                self.until = None;
                return Ok(true);
            }
            Err(fault) => return Err(fault.into()),
        };
        let last = match self.doing {
            Some(Doing::Command(last)) => last,
            _ => Instant::now(),
        };
        if command.is_nowait() && self.policy == VfCommands::Need && !self.is_end {
            self.doing = Some(Doing::Aftermath(Instant::now() + BUSY_LIMIT));
            return Ok(false);
        }
        if matches!(step, Step::Status(_)) && results[0] != 0 {
            if Instant::now() >= last {
                return Err(Fault::TimedOut(command.name).into());
            }
            self.doing = Some(Doing::Again(Instant::now() + STATUS_BETWEEN, last));
            return Ok(false);
        }
        self.until = None;
        parts.held.learn(command, &results)?;
        Ok(true)
    }

    /// A command without an answer that has to work is looked at all the same.
    fn survive(&mut self, step: Step, until: Instant, parts: &mut Parts<'_>) -> Result<bool, Trouble> {
        let Some((command, _)) = step.command() else {
            return Ok(true);
        };
        match parts.held.own.devcmd.aftermath(command) {
            None if Instant::now() >= until => Err(Fault::Busy.into()),
            None => Ok(false),
            Some(ended) => {
                ended?;
                self.until = None;
                Ok(true)
            }
        }
    }
}

impl Step {
    /// The command that it is, and its first arguments.
    fn command(self) -> Option<(Command, [u64; 2])> {
        match self {
            Self::Own(command, first) => Some((command, first)),
            Self::Status(command) => Some((command, [0; 2])),
            Self::Mac => Some((MAC_ADDR, [0; 2])),
            _ => None,
        }
    }
}

impl Held {
    /// Records what a reply of the function reveals about it.
    fn learn(&mut self, command: Command, results: &Arguments) -> Result<(), Fault> {
        match command {
            OPEN_STATUS => self.is_open = true,
            CLOSE => self.is_open = false,
            INIT_STATUS if results[1] != 0 => {
                let number = u32::try_from(results[1]).unwrap_or(u32::MAX);
                return Err(Fault::Refused(INIT.name, Errno(number)));
            }
            MAC_ADDR => self.mac = unicast_mac(results),
            NOTIFY => self.notify_kept = (results[1] as u32 as usize).min(NOTIFY_BYTES),
            _ => {}
        }
        Ok(())
    }

    /// The notify area is empty until the device writes it.
    fn forget_news(&mut self) {
        self.notify_kept = 0;
        self.slab.region().write(0, &[0; NOTIFY_BYTES]);
    }
}

/// Returns what is known now.
fn since(held: &mut Held) -> Since {
    let parent = held.steering.parent().ok();
    let own = match held.look() {
        Some(NotifyRead::News(news)) => Some(news.link_downs),
        _ => None,
    };
    Since {
        life: parent.map(|parent| parent.life),
        link_downs: [
            own,
            parent.and_then(|parent| parent.news).map(|news| news.link_downs),
        ],
    }
}

/// The registers of a queue.
fn window<'a>(parts: &'a Parts<'_>, side: Side, pair: usize) -> Result<&'a crate::window::Window, Fault> {
    let found = match side {
        Side::Send => parts.tx.rings.get(pair).map(|ring| ring.window()),
        Side::Receive => parts.rx.queues.rings.get(pair).map(|ring| ring.window()),
    };
    // They are there as long as the device is.
    found.ok_or(Fault::Gone)
}

/// Writes all addresses to the registers of the queues, which are off.
fn program(parts: &mut Parts<'_>) -> Result<(), Fault> {
    // Room that was promised is there still: the rings are empty.
    let posted = parts.tx.posted();
    if let Some(completions) = &mut parts.tx.completions {
        completions.program(None)?;
    }
    for ring in &mut parts.tx.rings {
        ring.program(posted)?;
    }
    parts.rx.queues.program(&parts.held.interrupts)?;
    Ok(())
}

fn steered(
    held: &mut Held,
    step: Step,
    request: Request,
    ended: Result<u64, Trouble>,
) -> Result<(), Trouble> {
    match (step, ended) {
        (Step::Steer(_) | Step::Wish(_), Ok(value)) => {
            if let Request::Steer(what, _) = request {
                held.filters.push(value);
                held.has_arp |= matches!(what, Match::Ethertype(_));
            }
            Ok(())
        }
        // The device's own word against a filter that is only wished for; anything else is no word.
        (Step::Wish(_), Err(trouble)) if trouble.errno().is_some() => Ok(()),
        (Step::Forget(request), ended) => {
            // The device's own word that there is no such thing is as good; that it is busy is no such word.
            let is_gone = ended.as_ref().map_or_else(
                |trouble| {
                    let busy = [Errno::BUSY, Errno::IN_PROGRESS];
                    trouble.errno().is_some_and(|errno| !busy.contains(&errno))
                },
                |_| true,
            );
            match request {
                Request::Unsteer(filter) if is_gone => held.filters.retain(|other| *other != filter),
                Request::Disable(pair) if is_gone => held.pairs[pair as usize % 2] = false,
                _ => {}
            }
            Ok(())
        }
        (_, ended) => ended.map(drop),
    }
}
