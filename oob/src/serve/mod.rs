//! The server side of PMI-1: what a launcher's process on each host answers to its ranks, sans I/O.
//!
//! ```text
//!   rank's bytes ──► received ──► Client (one conversation each) ──► Store: this host's copy of the values
//!                                     │
//!             Output::Send  ◄─────────┤ answers, in the order of the requests
//!             Output::Fence ◄─────────┤ all ranks of this host are at the barrier: for the other hosts
//!             Output::Abort ◄─────────┤ a rank requests the end of the job
//!             Output::Wrong ◄─────────┘ a rank violates the protocol: its input is ignored from now on
//!   the other hosts' values ──► fenced ──► Output::Send (barrier_out to all ranks here)
//! ```
//!
//! The lines are those of [`crate::launch::Pmi1`], as MPICH's clients use them: any program that starts under
//! hydra starts under this server. Values put before a barrier are visible to all ranks after it. Input is
//! untrusted: lines, keys, values, their number and the whole store are bounded, and so are unanswered
//! requests.
//!
//! A rank may be a script that runs several programs, one after another: each has a *life* of its own, which
//! it shares with the same life of the other ranks: a store, a job name (`job`, then `job.2`), and barriers.
//! The values sent for a barrier begin with their life (`u32 LE`, then values; empty when this host has
//! none). The store of a life is created at its first use, and one life is at most `AHEAD` ahead of the
//! oldest: beyond that, `init` is refused. If hosts are at barriers of different lives, the earliest
//! completes, and those of later lives are entered again under the next number.
//!
//! A request for more processes (`mcmd=spawn`) is passed on as [`Output::Spawn`], and answered by
//! [`Server::spawned`]. The new processes are a job of their own, with a server of their own. Published names
//! are refused in a form that clients understand.

mod client;
mod spawn;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::launch::{ABANDON, Program, TOKEN, is_token, refusal_of};
use client::{Client, Command};
pub use store::{LONGEST_KEY, LONGEST_VALUE, STORE};
use store::{Refused, Store};

/// What is to be done for the ranks of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send these bytes to this rank.
    Send(u32, Vec<u8>),
    /// All participating ranks of this host have reached the barrier with this number, from 0: these bytes
    /// are for the other hosts, and [`Server::fenced`] takes those of all hosts.
    Fence(u32, Vec<u8>),
    /// This rank requests the end of the job.
    Abort {
        /// The rank that requests it.
        rank: u32,
        /// The exit status it gives.
        code: u8,
        /// Its reason; may be empty.
        text: String,
    },
    /// This rank requests these processes, and waits for [`Server::spawned`].
    Spawn(u32, Box<Program>),
    /// The processes with this token are no longer waited for.
    Abandon(String),
    /// This rank violates the protocol, with the reason. Its conversation has ended, and so should the job.
    Wrong(u32, String),
}

/// The values of a job on one host, and the conversations with its ranks.
#[derive(Debug)]
pub struct Server {
    size: u32,
    clients: BTreeMap<u32, Client>,
    /// The values of each life of the ranks here.
    stores: BTreeMap<u32, Store>,
    /// The initial content of each store.
    mapping: String,
    job: String,
    /// The number of the current or next barrier.
    fence: u32,
    /// The life whose ranks here are all at the barrier, and their values: waiting for the other hosts.
    waits: Option<(u32, Vec<u8>)>,
    outputs: VecDeque<Output>,
}

/// The key of the process mapping.
const MAPPING: &str = "PMI_process_mapping";

/// Maximum number of lives that a rank may be ahead of the oldest one here, which bounds the number of
/// stores.
const AHEAD: u32 = 1024;

/// The placement of ranks, in blocks: `(first host, hosts, ranks on each)`.
pub type Blocks = [(u32, u32, u32)];

impl Server {
    /// Creates the server for a job of `size` ranks with the name `job` (no spaces), of which `ranks` are on
    /// this host; `blocks` is the placement of all ranks.
    #[must_use]
    pub fn new(job: &str, size: u32, ranks: impl IntoIterator<Item = u32>, blocks: &Blocks) -> Self {
        let mut server = Self {
            size,
            clients: ranks.into_iter().map(|rank| (rank, Client::default())).collect(),
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

    /// Returns the store of a life; at its first use, stores that no rank here needs any more are dropped.
    fn store(&mut self, life: u32) -> &mut Store {
        let mapping = &self.mapping;
        if !self.stores.contains_key(&life) {
            let oldest = self.clients.values().filter_map(Client::life).min();
            self.stores.retain(|known, _| Some(*known) >= oldest);
        }
        self.stores.entry(life).or_insert_with(|| {
            let mut store = Store::default();
            store.know(MAPPING, mapping);
            store
        })
    }

    /// Adds values that all programs of the first life have from the start, as a spawn request gives them.
    ///
    /// # Errors
    /// Why a value was rejected.
    pub fn preput(&mut self, values: &[(String, String)]) -> Result<(), String> {
        for (key, value) in values {
            self.store(0).insert(key, value).map_err(|refused| {
                format!(
                    "its value `{}` was rejected: {}",
                    crate::launch::shown(key),
                    refused.word()
                )
            })?;
        }
        Ok(())
    }

    /// Completes the spawn request of `rank`, with the reason if it failed.
    pub fn spawned(&mut self, rank: u32, result: Result<(), &str>) {
        if !self.clients.get_mut(&rank).is_some_and(Client::answered) {
            return;
        }
        let line = match result {
            Ok(()) => "cmd=spawn_result rc=0\n".to_owned(),
            Err(why) => format!("cmd=spawn_result rc=-1 msg={}\n", one_word(why)),
        };
        self.outputs.push_back(Output::Send(rank, line.into_bytes()));
        // It may have sent further requests without waiting.
        self.go_on(rank);
    }

    /// Records that the processes of `token` will not start, or were lost before they joined; the requester
    /// can look up why.
    pub fn failed(&mut self, token: &str, reason: &str) {
        if is_token(token) {
            let (key, text) = refusal_of(token, reason, LONGEST_VALUE);
            self.stores.values_mut().for_each(|store| store.know(&key, &text));
        }
    }

    /// Returns the next thing to do.
    pub fn take(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes bytes of a rank, in any fragments.
    pub fn received(&mut self, rank: u32, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(&rank) else {
            return;
        };
        client.take(bytes);
        self.go_on(rank);
    }

    /// Handles the requests of a rank.
    fn go_on(&mut self, rank: u32) {
        while let Some(client) = self.clients.get_mut(&rank) {
            match client.next() {
                Ok(Some(ask)) => self.answer(rank, ask),
                Ok(None) => return,
                Err(reason) => {
                    self.outputs.push_back(Output::Wrong(rank, reason));
                    return;
                }
            }
        }
    }

    /// Handles the end of a rank's line; returns whether it was regular, or never used.
    pub fn left(&mut self, rank: u32) -> bool {
        let Some(client) = self.clients.get_mut(&rank) else {
            return true;
        };
        let well = client.leave();
        if well {
            self.gather();
        }
        well
    }

    /// Whether a rank has sent `finalize`.
    #[must_use]
    pub fn took_leave(&self, rank: u32) -> bool {
        self.clients.get(&rank).is_some_and(Client::took_leave)
    }

    /// Completes barrier `fence` with the values of all hosts, including our own.
    ///
    /// # Errors
    /// Why they are invalid. The job cannot continue then.
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
            // Ranks of other hosts are still at a barrier of an earlier life.
            self.outputs.push_back(Output::Fence(self.fence, own.clone()));
            self.waits = Some((life, own));
            return Ok(());
        }
        for (_, values) in words.into_iter().filter(|(of, _)| *of == life) {
            self.store(life).merge(values)?;
        }
        let were_there = self
            .clients
            .iter_mut()
            .filter_map(|(rank, client)| client.release(life).then_some(*rank));
        let were_there: Vec<u32> = were_there.collect();
        let out = |rank: &u32| Output::Send(*rank, b"cmd=barrier_out\n".to_vec());
        self.outputs.extend(were_there.iter().map(out));
        // They may have sent further requests without waiting.
        were_there.into_iter().for_each(|rank| self.go_on(rank));
        Ok(())
    }

    fn answer(&mut self, rank: u32, ask: Command) {
        let line = match ask {
            Command::Greet if self.is_too_far(rank) => {
                if let Some(client) = self.clients.get_mut(&rank) {
                    client.refuse();
                }
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1 msg=too_many_programs\n".to_owned()
            }
            Command::Greet => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".to_owned(),
            Command::OtherVersion => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n".to_owned(),
            // The lengths include the terminator of a C string.
            Command::Limits => format!(
                "cmd=maxes kvsname_max=256 keylen_max={} vallen_max={}\n",
                LONGEST_KEY + 1,
                LONGEST_VALUE + 1
            ),
            Command::Application => "cmd=appnum appnum=0\n".to_owned(),
            Command::Name => format!("cmd=my_kvsname kvsname={}\n", self.name(self.life_of(rank))),
            Command::Universe => format!("cmd=universe_size size={}\n", self.size),
            Command::Put { job, key, value } => self.put(self.life_of(rank), &job, &key, &value),
            Command::Get { job, key } => self.get(self.life_of(rank), &job, &key),
            Command::Barrier => return self.gather(),
            Command::Finalize => {
                self.outputs
                    .push_back(Output::Send(rank, b"cmd=finalize_ack\n".to_vec()));
                // A rank that has finished is no longer at the barrier.
                return self.gather();
            }
            Command::Spawn(program) => {
                // The outcome of the spawn request is looked up in it.
                self.store(self.life_of(rank));
                self.outputs.push_back(Output::Spawn(rank, program));
                return;
            }
            Command::NoSpawn(why) => return self.spawned(rank, Err(why)),
            Command::Refuse(answer) => format!("cmd={answer} rc=-1 msg=not_supported\n"),
            Command::Abort { code, text } => {
                self.outputs.push_back(Output::Abort { rank, code, text });
                return;
            }
        };
        self.outputs.push_back(Output::Send(rank, line.into_bytes()));
    }

    /// Whether the life that a rank begins is too far ahead of the oldest.
    fn is_too_far(&self, rank: u32) -> bool {
        let oldest = self.clients.values().filter_map(Client::life).min().unwrap_or(0);
        self.life_of(rank).saturating_sub(oldest) > AHEAD
    }

    fn life_of(&self, rank: u32) -> u32 {
        self.clients.get(&rank).and_then(Client::life).unwrap_or(0)
    }

    /// Returns the job's name in a life.
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

    /// Completes this host's side of the barrier if all participants are there: at that of the earliest life
    /// with one.
    fn gather(&mut self) {
        let life = self.clients.values().filter_map(Client::is_at_barrier).min();
        let Some(life) = life.filter(|_| self.waits.is_none()) else {
            return;
        };
        if self.clients.values().any(|client| client.is_awaited(life)) {
            return;
        }
        let mut words = life.to_le_bytes().to_vec();
        self.store(life).write_fresh(&mut words);
        self.waits = Some((life, words.clone()));
        self.outputs.push_back(Output::Fence(self.fence, words));
    }
}

/// Returns the life that the values of a host belong to, and the values.
fn of_life(words: &[u8]) -> Result<(u32, &[u8]), String> {
    let (life, values) = words
        .split_first_chunk()
        .ok_or_else(|| "the values of another host are truncated".to_owned())?;
    Ok((u32::from_le_bytes(*life), values))
}

/// Returns the token of a spawn request.
#[must_use]
pub fn token_of(program: &Program) -> Option<&str> {
    let found = program.values.iter().find(|(key, _)| key == TOKEN)?;
    Some(found.1.as_str()).filter(|token| is_token(token))
}

/// Formats a text as one word of a line.
fn one_word(text: &str) -> String {
    let plain = |c: char| if matches!(c, '!'..='~') { c } else { '_' };
    text.chars().take(LONGEST_VALUE).map(plain).collect()
}

/// Formats the process mapping as hydra and Slurm do, and MPICH reads it.
fn mapping(blocks: &Blocks) -> String {
    let blocks: Vec<String> = blocks
        .iter()
        .map(|(first, hosts, ranks)| format!("({first},{hosts},{ranks})"))
        .collect();
    format!("(vector,{})", blocks.join(","))
}
