//! Watchdog of a physical function: checks every second whether it is in the state in which it was left,
//! opens it again after a reset, and claims it again after it was gone. What takes time there is done by a
//! thread of its own, so that nothing else waits for it; for a modelled one, that includes the check.
//!
//! ```text
//!   here ──not a bus master, or NOTIFY refused as not open: it was reset──► opening ──► here, a life later
//!   here ──reads as ones, or does not answer──► away ──50 ms to 2 s──► opening ──► here, a life later
//! ```

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::errno::{Errno, Fault};
use crate::flow_steering::{Request, Trouble};
use crate::notify::News;
use crate::pf::{Ended, Opener, Pf, PfInfo};

/// The period at which it is checked.
const ASK: Duration = Duration::from_secs(1);
/// Time after which it is opened again; doubled after each failure, up to the second value.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MOST: Duration = Duration::from_secs(2);
/// Checks in a row that may fail before it is opened again: one may come in the middle of something slow.
const STRIKES_MOST: u32 = 5;

/// What a turn finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The physical function does not reply as it should, for this reason; it may again.
    Slow(String),
    /// The physical function was reset, or is gone, for this reason: everything is lost until it is back.
    Lost(String),
    /// The physical function is back.
    Back,
}

type Opening = JoinHandle<Result<Box<Pf>, Trouble>>;

enum State {
    Here(Box<Pf>),
    Away(Recovery),
    Opening(Opening),
}

/// The way back.
enum Recovery {
    /// The same physical function is opened again.
    Mend(Box<Pf>),
    /// The physical function is claimed again, after an old claim was given back.
    Claim(Option<Box<Pf>>, Opener),
    /// It cannot be recovered; what is left of it.
    None { _old: Option<Box<Pf>> },
}

impl Recovery {
    /// Goes it; takes long.
    fn go(self) -> Result<Box<Pf>, Trouble> {
        match self {
            Self::Mend(mut pf) => pf.begin_anew().map(|()| pf),
            Self::Claim(old, open) => {
                drop(old);
                Pf::by(open).map(Box::new)
            }
            Self::None { .. } => Err(Fault::Gone.into()),
        }
    }
}

/// A physical function, there or not.
pub(crate) struct PfWatchdog {
    state: State,
    open: Option<Opener>,
    info: PfInfo,
    life: u64,
    asked: Instant,
    strikes: u32,
    next: Instant,
    patience: Duration,
}

impl PfWatchdog {
    pub(crate) fn new(pf: Pf) -> Self {
        let info = pf.info();
        Self {
            open: pf.opener(),
            state: State::Here(Box::new(pf)),
            info,
            life: 1,
            asked: Instant::now(),
            strikes: 0,
            next: Instant::now(),
            patience: AGAIN,
        }
    }

    /// The physical function, where it is there.
    pub(crate) fn pf(&mut self) -> Option<&mut Pf> {
        match &mut self.state {
            State::Here(pf) => Some(pf),
            _ => None,
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(self.state, State::Here(_))
    }

    /// Whether it may come back.
    pub(crate) fn has_hope(&self) -> bool {
        !matches!(self.state, State::Away(Recovery::None { .. }))
    }

    /// Returns what it reported of itself when it was there last.
    pub(crate) fn info(&self) -> PfInfo {
        self.info
    }

    /// Returns what it reports of its link.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.pf()?.news()
    }

    /// Counts up each time that everything installed is lost.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Checks it at once, after an unexpected refusal.
    pub(crate) fn doubt(&mut self) {
        self.asked = Instant::now().checked_sub(ASK).unwrap_or(self.asked);
    }

    /// Looks after it; never waits. A request that is under way ends in `ended`.
    pub(crate) fn turn(&mut self, ended: &mut Option<Result<u64, Trouble>>) -> Option<Change> {
        match &mut self.state {
            State::Here(pf) => {
                let watched = match pf.ended() {
                    Some(Ended::Request(answer)) => {
                        if let Err(Trouble::Fault(fault)) = &answer
                            && fault.is_gone()
                        {
                            self.doubt();
                        }
                        *ended = Some(answer);
                        return None;
                    }
                    Some(Ended::Watch(answer)) => answer,
                    None => return self.check(),
                };
                self.judge(watched)
            }
            State::Opening(thread) if thread.is_finished() => self.opened(),
            State::Opening(_) => None,
            State::Away(_) => {
                if Instant::now() >= self.next {
                    self.go();
                }
                None
            }
        }
    }

    /// Begins the way back, where there is one and the system has a thread for it; else it is tried again
    /// later.
    fn go(&mut self) {
        let State::Away(recovery) = self.take() else {
            return;
        };
        if matches!(recovery, Recovery::None { .. }) {
            self.state = State::Away(recovery);
            return;
        }
        // The owner of what takes long stays here until there is a thread that takes it over.
        let (give, taken) = mpsc::channel::<Recovery>();
        let thread = std::thread::Builder::new().name("usnic-pf".to_owned());
        let gone = move || taken.recv().unwrap_or(Recovery::None { _old: None }).go();
        match thread.spawn(gone) {
            Ok(thread) => {
                // It waits for this.
                let _ = give.send(recovery);
                self.state = State::Opening(thread);
            }
            Err(_) => {
                self.state = State::Away(recovery);
                self.wait();
            }
        }
    }

    /// The state, in whose place nothing is left.
    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Away(Recovery::None { _old: None }))
    }

    /// The next try is later.
    fn wait(&mut self) {
        self.next = Instant::now() + self.patience;
        self.patience = (self.patience * 2).min(AGAIN_MOST);
    }

    /// Checks it, where that is due and nothing else is under way.
    fn check(&mut self) -> Option<Change> {
        let State::Here(pf) = &mut self.state else {
            return None;
        };
        if self.asked.elapsed() < ASK || !pf.is_idle() {
            return None;
        }
        let was_reset = pf.was_reset()?;
        self.asked = Instant::now();
        match was_reset {
            Ok(false) => {
                let begun = pf.watch();
                begun.map_or_else(|fault| self.judge(Err(fault)), |()| None)
            }
            Ok(true) => Some(self.mend("the physical function was reset".to_owned())),
            Err(fault) => self.judge(Err(fault)),
        }
    }

    fn judge(&mut self, watched: Result<(), Fault>) -> Option<Change> {
        let fault = match watched {
            Ok(()) => {
                self.strikes = 0;
                return None;
            }
            Err(fault) => fault,
        };
        self.strikes += 1;
        match fault {
            // One that was reset is not open. Another number is no sign of that.
            Fault::Refused(_, Errno::STATE) => Some(self.mend(fault.to_string())),
            _ if fault.is_gone() || self.strikes > STRIKES_MOST => Some(self.lose(fault.to_string())),
            _ if self.strikes == 1 => Some(Change::Slow(fault.to_string())),
            _ => None,
        }
    }

    /// Opens the same one again.
    fn mend(&mut self, why: String) -> Change {
        if let State::Here(pf) = self.take() {
            self.state = State::Away(Recovery::Mend(pf));
            self.go();
        }
        Change::Lost(why)
    }

    /// Gives it back, and claims it again.
    fn lose(&mut self, why: String) -> Change {
        let old = match self.take() {
            State::Here(pf) => Some(pf),
            _ => None,
        };
        self.state = State::Away(self.claim(old));
        self.go();
        Change::Lost(why)
    }

    /// Claims the physical function again, where that can be done more than once.
    fn claim(&self, old: Option<Box<Pf>>) -> Recovery {
        match &self.open {
            Some(open) => Recovery::Claim(old, open.clone()),
            None => Recovery::None { _old: old },
        }
    }

    fn opened(&mut self) -> Option<Change> {
        let State::Opening(thread) = self.take() else {
            return None;
        };
        // A thread that panicked has opened nothing.
        match thread.join() {
            Ok(Ok(pf)) => {
                self.info = pf.info();
                self.state = State::Here(pf);
                self.life += 1;
                (self.strikes, self.patience, self.asked) = (0, AGAIN, Instant::now());
                Some(Change::Back)
            }
            Ok(Err(_)) | Err(_) => {
                self.state = State::Away(self.claim(None));
                self.wait();
                None
            }
        }
    }

    /// Carries out a request and waits for it: at the end, when no other request is served.
    pub(crate) fn run(&mut self, index: u32, request: Request) -> Result<u64, Trouble> {
        match self.pf() {
            Some(pf) => {
                pf.settle();
                pf.run(index, request)
            }
            None => Err(Fault::Gone.into()),
        }
    }
}

impl Drop for PfWatchdog {
    fn drop(&mut self) {
        if let State::Opening(thread) = self.take() {
            // Each of its steps has an end. What it has opened goes with it.
            let _ = thread.join();
        }
    }
}
