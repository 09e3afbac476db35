//! The other side of PMI-1: what a launcher's process on each host answers to the ranks there, without their descriptors.
//!
//! ```text
//!   rank's bytes ──► heard ──► Guest (one conversation each) ──► Store: this host's copy of the job's values
//!                                   │
//!             Output::Say ◄─────────┤ answers, in the order of the questions
//!             Output::Fence ◄───────┤ all ranks of this host are at the barrier: give this to the other hosts
//!             Output::Abort ◄───────┤ a rank asks for the end of the job
//!             Output::Wrong ◄───────┘ a rank says what is no PMI: it is not listened to any more
//!   the other hosts' words ──► fenced ──► Output::Say (barrier_out to everybody here)
//! ```
//!
//! The lines are those of [`crate::launch::Pmi1`], as MPICH's clients speak them: with this any program that starts under
//! hydra starts under ours. Values put before a barrier are everybody's after it. What ranks say is hostile: lines, keys,
//! values, their number and the whole store are bounded, and so is what a rank may ask before it has read its answers.
//!
//! A rank may be a script that runs several programs, one after the other: each has a *life* of its own, in
//! which it meets the same life of the other ranks: a store, a name of the job (`job`, then `job.2`), and
//! barriers. The words of a barrier say of which life they are (`u32 LE`, then values; no words at all:
//! nothing of this host). A life's store is made when it is first used, and one life is at most `AHEAD`
//! ahead of the oldest: `init` is refused beyond. Where hosts are at barriers of different lives, the earliest
//! is over, and those of later ones are entered again under the next number.
//!
//! An order for more processes (`mcmd=spawn`) is given on as [`Output::Spawn`], and answered by [`Server::spawned`]. The new
//! processes are a job of their own, with a server of their own. Published names are refused in words that clients
//! understand.

mod client;
mod spawn;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::launch::{ABANDON, Program, TOKEN, is_token, said_of};
use client::{Ask, Guest};
pub use store::{LONGEST_KEY, LONGEST_VALUE, STORE};
use store::{Refused, Store};

/// What is to be done for the ranks of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write these bytes to this rank.
    Say(u32, Vec<u8>),
    /// All ranks of this host that take part have come to barrier number `0`, `1`, …: these bytes are for the other hosts, and
    /// [`Server::fenced`] is called with those of all hosts.
    Fence(u32, Vec<u8>),
    /// This rank asks that the job ends.
    Abort {
        /// Who.
        rank: u32,
        /// With which exit status.
        code: u8,
        /// Its reason; empty when it gave none.
        text: String,
    },
    /// This rank wants these processes started, and waits for [`Server::spawned`].
    Spawn(u32, Box<Program>),
    /// Nobody waits any more for the processes that were asked for under this token.
    Abandon(String),
    /// This rank does not keep to the protocol: why. Its conversation is over, and so should be the job.
    Wrong(u32, String),
}

/// The values of a job on one host, and the conversations with its ranks.
#[derive(Debug)]
pub struct Server {
    size: u32,
    guests: BTreeMap<u32, Guest>,
    /// The values of each life of the ranks here.
    stores: BTreeMap<u32, Store>,
    /// What the store of each life begins with.
    mapping: String,
    job: String,
    /// The barrier that is under way, or will be next.
    fence: u32,
    /// The life whose ranks here are all at it, and their words: the other hosts are waited for.
    waits: Option<(u32, Vec<u8>)>,
    outputs: VecDeque<Output>,
}

/// The key of where the ranks are.
const MAPPING: &str = "PMI_process_mapping";

/// How many lives a rank may be ahead of the oldest one that a rank here is in: as many stores are kept.
const AHEAD: u32 = 1024;

/// Where the ranks of a job are, for programs that ask: `(first host, hosts, ranks on each)`, in blocks.
pub type Blocks = [(u32, u32, u32)];

impl Server {
    /// For a job of `size` ranks, called `job` (no spaces), of which `ranks` are on this host; `blocks` says how many ranks the
    /// hosts have, in their order.
    #[must_use]
    pub fn new(job: &str, size: u32, ranks: impl IntoIterator<Item = u32>, blocks: &Blocks) -> Self {
        let mut server = Self {
            size,
            guests: ranks.into_iter().map(|rank| (rank, Guest::default())).collect(),
            stores: BTreeMap::new(),
            mapping: mapping(blocks),
            job: job.to_owned(),
            fence: 0,
            waits: None,
            outputs: VecDeque::new(),
        };
        server.store(0);
        server
    }

    /// The values of a life; with its first use those are forgotten that no rank here is in any more.
    fn store(&mut self, life: u32) -> &mut Store {
        let mapping = &self.mapping;
        if !self.stores.contains_key(&life) {
            let oldest = self.guests.values().filter_map(Guest::life).min();
            self.stores.retain(|known, _| Some(*known) >= oldest);
        }
        self.stores.entry(life).or_insert_with(|| {
            let mut store = Store::default();
            store.know(MAPPING, mapping);
            store
        })
    }

    /// Values that all programs which come first have from the start: those that the processes of an order
    /// are to be given.
    ///
    /// # Errors
    /// Why one is none.
    pub fn preput(&mut self, values: &[(String, String)]) -> Result<(), String> {
        for (key, value) in values {
            self.store(0).insert(key, value).map_err(|refused| {
                format!(
                    "its value `{}` was not taken: {}",
                    crate::launch::shown(key),
                    refused.word()
                )
            })?;
        }
        Ok(())
    }

    /// The order of `rank` was carried out, or the one reason why not.
    pub fn spawned(&mut self, rank: u32, result: Result<(), &str>) {
        if !self.guests.get_mut(&rank).is_some_and(Guest::answered) {
            return;
        }
        let line = match result {
            Ok(()) => "cmd=spawn_result rc=0\n".to_owned(),
            Err(why) => format!("cmd=spawn_result rc=-1 msg={}\n", one_word(why)),
        };
        self.outputs.push_back(Output::Say(rank, line.into_bytes()));
        // Whoever has asked on without waiting.
        self.go_on(rank);
    }

    /// The processes that were asked for under `token` will not come, or were lost before they had joined: who asked can
    /// look at why.
    pub fn failed(&mut self, token: &str, reason: &str) {
        if is_token(token) {
            let (key, text) = said_of(token, reason, LONGEST_VALUE);
            self.stores.values_mut().for_each(|store| store.know(&key, &text));
        }
    }

    /// What is to be done next.
    pub fn take(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A rank has said something: any piece of its lines.
    pub fn heard(&mut self, rank: u32, bytes: &[u8]) {
        let Some(guest) = self.guests.get_mut(&rank) else {
            return;
        };
        guest.take(bytes);
        self.go_on(rank);
    }

    /// Answers what a rank has asked so far.
    fn go_on(&mut self, rank: u32) {
        while let Some(guest) = self.guests.get_mut(&rank) {
            match guest.next() {
                Ok(Some(ask)) => self.answer(rank, ask),
                Ok(None) => return,
                Err(reason) => {
                    self.outputs.push_back(Output::Wrong(rank, reason));
                    return;
                }
            }
        }
    }

    /// A rank's line has ended: whether it had taken leave, or never came.
    pub fn left(&mut self, rank: u32) -> bool {
        let Some(guest) = self.guests.get_mut(&rank) else {
            return true;
        };
        let well = guest.leave();
        if well {
            self.gather();
        }
        well
    }

    /// Whether a rank has said that it ends.
    #[must_use]
    pub fn took_leave(&self, rank: u32) -> bool {
        self.guests.get(&rank).is_some_and(Guest::took_leave)
    }

    /// The words of all hosts for barrier `fence`, our own among them: it is over.
    ///
    /// # Errors
    /// What is wrong with them. The job cannot go on then.
    pub fn fenced<'a>(
        &mut self,
        fence: u32,
        words: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        let Some((life, own)) = self.waits.take_if(|_| fence == self.fence) else {
            return Err(format!(
                "barrier {fence} ended, but this host is {} barrier {}",
                if self.waits.is_some() { "at" } else { "before" },
                self.fence
            ));
        };
        self.fence = fence + 1;
        let words = words.into_iter().filter(|words| !words.is_empty());
        let words: Vec<(u32, &[u8])> = words.map(of_life).collect::<Result<_, _>>()?;
        if words.iter().any(|(other, _)| *other < life) {
            // Ranks of other hosts are still at one of an earlier life.
            self.outputs.push_back(Output::Fence(self.fence, own.clone()));
            self.waits = Some((life, own));
            return Ok(());
        }
        for (_, values) in words.into_iter().filter(|(of, _)| *of == life) {
            self.store(life).merge(values)?;
        }
        let were_there = self
            .guests
            .iter_mut()
            .filter_map(|(rank, guest)| guest.release(life).then_some(*rank));
        let were_there: Vec<u32> = were_there.collect();
        let out = |rank: &u32| Output::Say(*rank, b"cmd=barrier_out\n".to_vec());
        self.outputs.extend(were_there.iter().map(out));
        // Whoever has asked on without waiting.
        were_there.into_iter().for_each(|rank| self.go_on(rank));
        Ok(())
    }

    fn answer(&mut self, rank: u32, ask: Ask) {
        let line = match ask {
            Ask::Greet if self.is_too_far(rank) => {
                if let Some(guest) = self.guests.get_mut(&rank) {
                    guest.refuse();
                }
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1 msg=too_many_programs\n".to_owned()
            }
            Ask::Greet => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".to_owned(),
            Ask::OtherVersion => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n".to_owned(),
            // The lengths count the end of a text in C.
            Ask::Limits => format!(
                "cmd=maxes kvsname_max=256 keylen_max={} vallen_max={}\n",
                LONGEST_KEY + 1,
                LONGEST_VALUE + 1
            ),
            Ask::Application => "cmd=appnum appnum=0\n".to_owned(),
            Ask::Name => format!("cmd=my_kvsname kvsname={}\n", self.name(self.life_of(rank))),
            Ask::Universe => format!("cmd=universe_size size={}\n", self.size),
            Ask::Put { job, key, value } => self.put(self.life_of(rank), &job, &key, &value),
            Ask::Get { job, key } => self.get(self.life_of(rank), &job, &key),
            Ask::Barrier => return self.gather(),
            Ask::Finalize => {
                self.outputs
                    .push_back(Output::Say(rank, b"cmd=finalize_ack\n".to_vec()));
                // Who has taken leave is at no barrier any more.
                return self.gather();
            }
            Ask::Spawn(program) => {
                // What becomes of the order is looked up in it.
                self.store(self.life_of(rank));
                self.outputs.push_back(Output::Spawn(rank, program));
                return;
            }
            Ask::NoSpawn(why) => return self.spawned(rank, Err(why)),
            Ask::Refuse(answer) => format!("cmd={answer} rc=-1 msg=not_supported\n"),
            Ask::Abort { code, text } => {
                self.outputs.push_back(Output::Abort { rank, code, text });
                return;
            }
        };
        self.outputs.push_back(Output::Say(rank, line.into_bytes()));
    }

    /// Whether the life that a rank begins is too far ahead of the oldest.
    fn is_too_far(&self, rank: u32) -> bool {
        let oldest = self.guests.values().filter_map(Guest::life).min().unwrap_or(0);
        self.life_of(rank).saturating_sub(oldest) > AHEAD
    }

    fn life_of(&self, rank: u32) -> u32 {
        self.guests.get(&rank).and_then(Guest::life).unwrap_or(0)
    }

    /// What the job is called in a life.
    fn name(&self, life: u32) -> String {
        match life {
            0 => self.job.clone(),
            life => format!("{}.{}", self.job, u64::from(life) + 1),
        }
    }

    fn put(&mut self, life: u32, job: &str, key: &str, value: &str) -> String {
        let others = self.stores.iter().filter(|(other, _)| **other != life);
        let others: usize = others.map(|(_, store)| store.bytes()).sum();
        let refused = if job != self.name(life) {
            Some(Refused::Name)
        } else if others + key.len() + value.len() > STORE {
            Some(Refused::Full)
        } else {
            self.store(life).put(key, value).err()
        };
        match refused {
            None => {
                let abandoned = key.strip_prefix(ABANDON).filter(|token| is_token(token));
                let abandoned = abandoned.map(|token| Output::Abandon(token.to_owned()));
                self.outputs.extend(abandoned);
                "cmd=put_result rc=0 msg=success\n".to_owned()
            }
            Some(refused) => format!("cmd=put_result rc=-1 msg={}\n", refused.word()),
        }
    }

    fn get(&mut self, life: u32, job: &str, key: &str) -> String {
        let found = if job == self.name(life) {
            self.store(life).get(key)
        } else {
            None
        };
        match found {
            Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
            None => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".to_owned(),
        }
    }

    /// Whether all who take part are at the barrier now: at that of the earliest life that is at one.
    fn gather(&mut self) {
        let life = self.guests.values().filter_map(Guest::is_at_barrier).min();
        let Some(life) = life.filter(|_| self.waits.is_none()) else {
            return;
        };
        if self.guests.values().any(|guest| guest.is_awaited(life)) {
            return;
        }
        let mut words = life.to_le_bytes().to_vec();
        self.store(life).write_fresh(&mut words);
        self.waits = Some((life, words.clone()));
        self.outputs.push_back(Output::Fence(self.fence, words));
    }
}

/// Which life the words of a host are of, and its values.
fn of_life(words: &[u8]) -> Result<(u32, &[u8]), String> {
    let (life, values) = words
        .split_first_chunk()
        .ok_or_else(|| "another host's words are cut off".to_owned())?;
    Ok((u32::from_le_bytes(*life), values))
}

/// The token under which processes are asked for.
#[must_use]
pub fn token_of(program: &Program) -> Option<&str> {
    let found = program.values.iter().find(|(key, _)| key == TOKEN)?;
    Some(found.1.as_str()).filter(|token| is_token(token))
}

/// A text as one word of a line.
fn one_word(text: &str) -> String {
    let plain = |c: char| if matches!(c, '!'..='~') { c } else { '_' };
    text.chars().take(LONGEST_VALUE).map(plain).collect()
}

/// As hydra and Slurm write it, and MPICH reads it.
fn mapping(blocks: &Blocks) -> String {
    let blocks: Vec<String> = blocks
        .iter()
        .map(|(first, hosts, ranks)| format!("({first},{hosts},{ranks})"))
        .collect();
    format!("(vector,{})", blocks.join(","))
}
