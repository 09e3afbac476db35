//! The control plane of a job: messages between its ranks beside the rails, and notices of lost ranks.
//!
//! ```text
//!   rank                                         thread `doorbell-oob`
//!   waits, posts, polls rails                    TCP over every NIC that was named, along a tree of ranks
//!   housekeeping looks at ◄── lost peers ◄────── PeerLost, LifelineLost          (policy `end`)
//!   World::control ───────► Oob ◄──────────────► messages, broadcasts, events    (doorbell_oob::plane)
//! ```
//!
//! It exists where `control.mode` is on, at all ranks. They exchange their control addresses once, over the
//! rails; the key of its sessions is derived from the job's. It listens on the loopback interface alone,
//! unless `control.nics` names others. Further settings select whether its thread spins and where, and what
//! carries it beside or instead of `tcp`: rails of its own (`means`).
//!
//! With the policy `end`, a rank that the control plane has lost is lost for the rails as well: operations
//! that need it end with [`Error::PeerLost`], even where the rails would have waited on. A rank without a
//! lifeline (its parent in the tree and all ancestors, the root among them, are gone) loses all others. The
//! policy `tell` only delivers events.
//!
//! With a control plane, the end of a world is collective: see [`Control`].

mod means;

use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::cores::{self, CoreSet, Narrowed};

use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config as Plan, Policy};
use doorbell_oob::contact::Contact;
use doorbell_oob::event::Event;
use doorbell_oob::lines::tcp::{Chosen, Families, Pattern, Settings};
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::plane::Oob;
use doorbell_oob::routed::Tree;
use doorbell_oob::{JobKey, OobError};
use doorbell_pml::Rank;

use crate::binding::{self, ControlCore};
use crate::config::{Config, ControlPolicy, ControlTransport};
use crate::error::Error;
use crate::meet::Key;
use crate::meet::tcp::exit_of;
use crate::notices::Notices;
use crate::ranks::Directory;

use means::check_apart;
pub use means::{Means, RAIL_PURPOSE, check_rails};

/// The purpose that the sessions' key is derived for.
const PURPOSE: &str = "control";
/// The gathers by which all ranks agree that the job is over, and that all have started.
const END: u32 = u32::MAX;
const BEGIN: u32 = END - 1;
/// Most children of a rank in the tree.
const RADIX: u32 = 64;
/// Time for closing connections once the end is agreed.
const LAST: Duration = Duration::from_secs(2);
/// Time for an answer of the control plane's thread, which never blocks.
const SOON: Duration = Duration::from_secs(10);
/// Longest contact or error text of a rank, in bytes.
const LONGEST: u32 = 64 << 10;

/// The control plane of this rank, as long as the world is there.
///
/// Ranks are named by [`Control::name_of`]; tags below [`RESERVED`](doorbell_oob::rml::RESERVED) are the
/// control plane's own. The end of a world waits for the ends of the other ranks, up to `wait.deadline`,
/// since a peer cannot distinguish an early end from a failure. A rank that leaves without this agreement (it
/// is killed, it panics, or the deadline passes) counts as lost at the others.
#[derive(Debug)]
pub struct Control {
    oob: Oob,
    job: u64,
    core: Option<usize>,
    /// Keeps the thread that started it off that core.
    narrowed: Option<Narrowed>,
}

impl Control {
    /// Gives access to messages, receives, broadcasts, gathers and events. The gathers with the two largest
    /// numbers are the world's own.
    #[must_use]
    pub fn oob(&self) -> &Oob {
        &self.oob
    }

    /// Returns a rank's name in the control plane.
    #[must_use]
    pub fn name_of(&self, rank: u32) -> Name {
        Name::new(self.job, rank)
    }

    /// Returns the core that its thread spins on, where one was chosen.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// Lets the thread that started it have its former cores again.
    pub fn release_cores(&mut self) {
        self.narrowed = None;
    }

    /// Ends the control plane, in agreement with the other ranks if that succeeds within `limit`.
    pub fn end(self, limit: Duration) {
        // Ranks that agree first disappear first: `hush` keeps their ends from being reported as losses.
        if !limit.is_zero()
            && self.oob.hush().is_ok()
            && let Ok(agreed) = self.oob.gather(END, Bytes::from(&[]), limit)
        {
            let _ = agreed.wait(limit);
        }
        self.oob.finish(LAST);
    }
}

/// The ranks that the control plane has lost, on their way to the owner of the rails.
pub type LostPeers = Arc<Notices<Rank>>;

/// The rank and the job that a control plane is for.
pub struct Member<'a> {
    /// The settings of the job.
    pub config: &'a Config,
    /// The rank of this process.
    pub rank: u32,
    /// The ranks of the job.
    pub directory: &'a Directory,
    /// Where the owner of the rails finds the ranks that are lost.
    pub lost_peers: &'a LostPeers,
}

impl Member<'_> {
    fn size(&self) -> u32 {
        self.directory.size()
    }
}

/// An allgather over the rails: equally many bytes of every rank.
pub type AllGather<'a> = &'a dyn Fn(&[u8], &mut [u8]) -> Result<(), Error>;

/// Refuses a control plane for ranks that are worlds of one thread, which cannot call a collective operation
/// together.
pub fn refuse_without_processes(config: &Config) -> Result<(), Error> {
    if *config.control.mode.get() {
        return Err(Error::Unsupported {
            what: "a control plane (control.mode)",
            by: "a job inside one process".to_owned(),
        });
    }
    Ok(())
}

/// Refuses settings of a control plane that cannot be carried out here, before the ranks meet.
///
/// # Errors
/// [`Error::BadValue`], [`Error::Rail`], each with the remedy.
pub fn check(config: &Config) -> Result<(), Error> {
    if !*config.control.mode.get() {
        return Ok(());
    }
    config.verify_control()?;
    binding::check_control(config)?;
    check_rails(config)
}

/// Starts the control plane of this rank; collective.
///
/// # Errors
/// What failed at this rank or at another one; ranks that did not start in time.
pub fn start(member: &Member<'_>, key: &Key, allgather: AllGather<'_>) -> Result<Control, Error> {
    let begun = begin(member, key);
    let own = match &begun {
        Ok((_, contact)) => {
            let mut bytes = vec![1];
            contact.encode(&mut bytes);
            bytes
        }
        Err(error) => [&[0, error.exit().number()], error.to_string().as_bytes()].concat(),
    };
    let all = exchange(member.size(), &own, allgather);
    let (control, _) = begun?;
    let all = all?;
    let contacts = contacts(member.size(), &all)?;
    let known = if means::needs_all_contacts(member.config) {
        contacts
    } else {
        // Those of the ancestors, which this rank may have to connect to; others are found through them.
        let tree = Tree::new(member.size(), RADIX);
        let ancestors = tree.ancestors(member.rank);
        ancestors.map(|rank| contacts[rank as usize].clone()).collect()
    };
    let ready = control.oob.learn(known).and_then(|()| control.oob.begin());
    ready.map_err(|busy| ended(&busy.to_string()))?;
    meet(member.config, &control)?;
    Ok(control)
}

/// Waits until every rank is in the tree: a rank that never joined it could not be reported as lost.
fn meet(config: &Config, control: &Control) -> Result<(), Error> {
    let limit = *config.job.timeout.get();
    let there = control.oob.gather(BEGIN, Bytes::from(&[]), limit);
    let there = there.map_err(|busy| ended(&busy.to_string()))?;
    // The timed-out gather itself reports the missing ranks, a little after the limit.
    let missing = there
        .wait(limit + SOON)
        .map_or_else(Vec::new, |there| there.missing);
    let trouble = control.oob.troubles().into_iter().next_back();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::MissingRanks {
            missing,
            waited: limit,
            note: trouble.map_or_else(String::new, |trouble| {
                format!(" in the control plane ({trouble})")
            }),
        }),
    }
}

/// Starts this rank's own part.
fn begin(member: &Member<'_>, key: &Key) -> Result<(Control, Contact), Error> {
    let config = member.config;
    let settings = settings(config, member.directory.is_apart())?;
    let core = binding::of_control(config, member.rank, member.directory)?;
    let policy = *config.control.policy.get();
    let zero = member
        .directory
        .rank_info(0)
        .ok_or_else(|| ended("rank 0 is missing from the table of ranks"))?;
    let job = zero.incarnation;
    let name = Name::new(job, member.rank);
    let job_key = JobKey::from_bytes(*key.bytes());
    let rail_key = Key::of_bytes(*job_key.derive(RAIL_PURPOSE).expose());
    let means = Means::of(config, settings, &rail_key, core.as_ref().map(|core| core.core));
    let mut plan = Plan::new(name, Epoch(1), member.size(), means.transports);
    plan.radix = RADIX;
    plan.grace = *config.control.grace.get();
    plan.policy = match policy {
        ControlPolicy::End => Policy::End,
        ControlPolicy::Tell => Policy::Persist,
    };
    let widened = core.as_ref().and_then(|core| widened(core.core));
    let oob = Oob::start(plan, means.carried, Some(job_key.derive(PURPOSE)), means.runner)?;
    drop(widened);
    if policy == ControlPolicy::End {
        let lost_peers = Arc::clone(member.lost_peers);
        lost_peers.begin("make an eventfd for the control plane")?;
        let (rank, size) = (member.rank, member.size());
        let watched = oob.watch_events(move |event| match event {
            Event::PeerLost { peer, .. } => lost_peers.send([Rank(peer.rank)]),
            Event::LifelineLost => lost_peers.send((0..size).filter(|other| *other != rank).map(Rank)),
            _ => {}
        });
        watched.map_err(|busy| ended(&busy.to_string()))?;
    }
    let contact = oob.contact().ok().and_then(|contact| contact.wait(SOON)?);
    let contact = contact.ok_or_else(|| ended("it did not report its own address"))?;
    let control = Control {
        oob,
        job,
        core: core.as_ref().map(|core| core.core),
        narrowed: core.and_then(|core| kept_off(&core)),
    };
    Ok((control, contact))
}

/// Gives the calling thread a core that it was kept off for the sake of a progress thread, so that the
/// control plane's thread, which it starts, can have it.
fn widened(core: usize) -> Option<Narrowed> {
    let mut all = cores::allowed();
    let is_missing = !all.is_empty() && !all.contains(core);
    all.add(&CoreSet::from_iter([core]));
    is_missing.then(|| Narrowed::bind(&all).ok()).flatten()
}

/// Keeps the calling thread off the core that the control plane's spins on, if it has others. Where the
/// system refuses that, it keeps those that it has.
fn kept_off(core: &ControlCore) -> Option<Narrowed> {
    let own = cores::allowed();
    let others = own.without(&CoreSet::from_iter([core.core]));
    let is_kept_off = core.is_alone && own.contains(core.core) && !others.is_empty();
    is_kept_off.then(|| Narrowed::bind(&others).ok()).flatten()
}

fn ended(why: &str) -> Error {
    Error::Oob(OobError::Thread {
        what: "the control plane of this rank",
        source: std::io::Error::other(why.to_owned()),
    })
}

/// Returns the interfaces and ports to listen on.
fn settings(config: &Config, apart: bool) -> Result<Settings, Error> {
    let control = &config.control;
    let nics = control.nics.get().as_deref().unwrap_or_default();
    let unfit = "the interfaces that the control plane may use, as in `eth0` or `10.0.0.0/8`: the ranks are on several hosts";
    let has_tcp = control.transports.get().has(ControlTransport::Tcp);
    if let Some(error) = config
        .unfit("control.nics", unfit)
        .filter(|_| apart && nics.is_empty() && has_tcp)
    {
        return Err(error);
    }
    if apart {
        check_apart(config)?;
    }
    let patterns = nics.split(',').filter(|text| !text.is_empty());
    let patterns: Result<Vec<Pattern>, OobError> = patterns.map(|text| text.trim().parse()).collect();
    Ok(Settings {
        nics: Chosen::new(patterns?, Vec::new(), Families::Both)?,
        ports: control.ports.get().as_deref().unwrap_or("any").parse()?,
        ..Settings::default()
    })
}

/// Exchanges byte strings; returns those of all ranks, in the order of ranks.
fn exchange(size: u32, own: &[u8], allgather: AllGather<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let size = size as usize;
    let own = &own[..own.len().min(LONGEST as usize)];
    let mut lengths = vec![0; 4 * size];
    allgather(&(own.len() as u32).to_le_bytes(), &mut lengths)?;
    let lengths: Vec<usize> = lengths
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]).min(LONGEST) as usize)
        .collect();
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let mut padded = vec![0; longest];
    padded[..own.len()].copy_from_slice(own);
    let mut all = vec![0; longest * size];
    allgather(&padded, &mut all)?;
    let each = all.chunks_exact(longest.max(1)).zip(lengths);
    Ok(each.map(|(bytes, length)| bytes[..length].to_vec()).collect())
}

/// Decodes where each rank can be reached; fails with the reason of a rank that cannot take part.
fn contacts(size: u32, all: &[Vec<u8>]) -> Result<Vec<Contact>, Error> {
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        let rank = rank as u32;
        let contact = bytes.split_first().and_then(|(kind, mut rest)| {
            let contact = (*kind == 1).then(|| Contact::decode(&mut rest))??;
            (contact.name.rank == rank).then_some(contact)
        });
        contact.ok_or_else(|| Error::Withdrawn {
            rank,
            exit: exit_of(bytes.get(1).copied().unwrap_or_default()),
            reason: shown(bytes.get(2..).unwrap_or_default()),
        })
    };
    let contacts: Result<Vec<Contact>, Error> = all.iter().enumerate().map(read).collect();
    let contacts = contacts?;
    debug_assert_eq!(contacts.len(), size as usize, "one of each");
    Ok(contacts)
}

/// Makes another rank's text fit for printing.
fn shown(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .take(400)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match text.is_empty() {
        true => "it sent no address of its control plane".to_owned(),
        false => format!("its control plane: {text}"),
    }
}
