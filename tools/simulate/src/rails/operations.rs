//! Puts, gets and atomics beside the plan. Each rank has a window, in which every rank has a cell and a block
//! of its own.
//!
//! * A rank adds to its cell of another one's window, several times in a row, without waiting: the answers
//!   have to be the numbers one behind the other, so that each was done once and at its turn.
//! * It puts bytes into its block, of any length, and gets them back when they are there.
//! * At the end each cell has what its owner has added.

use std::time::Duration;

use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::time::Time;
use doorbell_sim::Random;

use super::seat::Beside;
use crate::end::{End, Ended, Trouble};
use crate::failure::Kind;

/// Bytes of the longest put: longer than what any rail takes in one message.
const LONGEST: u64 = 100_000;
/// Exchanges of each rank, about.
const EACH: u32 = 200;
/// Additions in a row, at most.
const ROW: u64 = 6;
/// Bytes of a cell.
const CELL: usize = 8;

/// What an end can do with windows. The calls return `None` where nothing can begin for the moment.
pub(crate) trait OneSided: End {
    /// Lets peers reach memory.
    fn expose(&mut self, memory: RegionSlice) -> Result<(), Kind>;

    /// Puts bytes at an offset.
    fn put(&mut self, to: u32, at: u64, bytes: RegionSlice) -> Result<Option<Self::Request>, Trouble>;

    /// Gets bytes at an offset.
    fn get(&mut self, from: u32, at: u64, room: RegionSlice) -> Result<Option<Self::Request>, Trouble>;

    /// Adds to the number at an offset; if `fetches`, with what was there before. Memory: what is added, then
    /// room for what was there.
    fn add(
        &mut self,
        to: u32,
        at: u64,
        words: [RegionSlice; 2],
        fetches: bool,
    ) -> Result<Option<Self::Request>, Trouble>;
}

/// What is under way.
enum Stage {
    /// Additions, each with what it has to return, if anything.
    Adds(Vec<Option<u64>>),
    /// Bytes are being put.
    Put,
    /// They are got back.
    Get,
}

/// Operations on one window that belong together.
struct Exchange<R> {
    to: u32,
    stage: Stage,
    /// Those that have not ended, with their places in the row.
    open: Vec<(usize, R)>,
    /// What is put, or pairs of words.
    memory: Region,
    back: Option<Region>,
}

/// One rank's part in it.
pub(crate) struct Operations<R> {
    rank: u32,
    random: Random,
    pace: Duration,
    /// When the next exchange begins.
    next: Time,
    window: Region,
    exchange: Option<Exchange<R>>,
    /// What was added to the cell in each window.
    added: Vec<u64>,
    /// Ranks of which an operation has ended with their loss: whether it was done is not known.
    lost: Vec<bool>,
    bytes: u64,
}

fn block(rank: u32, ranks: usize) -> u64 {
    (CELL * ranks) as u64 + u64::from(rank) * LONGEST
}

fn wrong(text: String) -> Kind {
    Kind::Other(format!("one-sided: {text}"))
}

fn region(length: usize) -> Result<Region, Kind> {
    Region::new(length.max(1)).map_err(|error| Kind::Other(error.to_string()))
}

impl<E: OneSided> Beside<E> for Operations<E::Request> {
    /// Every fourth seed has some.
    fn of(seed: u64, rank: u32, ranks: u32, lasts: Duration) -> Option<Self> {
        let length = block(ranks, ranks as usize) as usize;
        (seed % 4 == 1).then(|| Self {
            rank,
            random: Random::for_part(seed, &[35, u64::from(rank)]),
            pace: lasts / EACH,
            next: Time::ZERO,
            window: Region::new(length).expect("memory for a window"),
            exchange: None,
            added: vec![0; ranks as usize],
            lost: vec![false; ranks as usize],
            bytes: 0,
        })
    }

    fn begin(&mut self, end: &mut E) -> Result<(), Kind> {
        end.expose(self.window.whole())
    }

    fn step(&mut self, end: &mut E, now: Time) -> Result<(), Kind> {
        if self.exchange.is_none() && self.next <= now {
            self.start(end)?;
            let most = 2 * u64::try_from(self.pace.as_nanos()).unwrap_or(u64::MAX / 2);
            self.next = now + Duration::from_nanos(self.random.below(most.max(1)));
        }
        self.look(end)
    }

    fn clear_up(&mut self, end: &mut E) -> Result<(), Kind> {
        self.look(end)
    }

    fn open(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.open.len())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn missing(all: &[Option<&Self>], lives: &dyn Fn(u32, u32) -> bool) -> Option<String> {
        let all: Vec<&Self> = all.iter().copied().flatten().collect();
        let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
        let mut known = pairs.filter(|(from, to)| lives(from.rank, to.rank) && !from.lost[to.rank as usize]);
        known.find_map(|(from, to)| {
            let (added, found) = (
                from.added[to.rank as usize],
                word(&to.window.whole(), from.rank as usize),
            );
            let (from, to) = (from.rank, to.rank);
            (added != found).then(|| format!("rank {from} has added {added} at {to}, where {found} are"))
        })
    }
}

/// The number at a place of memory that has numbers.
fn word(memory: &RegionSlice, at: usize) -> u64 {
    let mut bytes = [0; CELL];
    memory.copy_to(at * CELL, &mut bytes);
    u64::from_le_bytes(bytes)
}

impl<R> Operations<R> {
    fn start<E: OneSided<Request = R>>(&mut self, end: &mut E) -> Result<(), Kind> {
        let to = self.random.below(self.added.len() as u64) as u32;
        if self.lost[to as usize] {
            return Ok(());
        }
        match self.random.below(2) {
            0 => self.start_adds(end, to),
            _ => self.start_put(end, to),
        }
    }

    fn start_adds<E: OneSided<Request = R>>(&mut self, end: &mut E, to: u32) -> Result<(), Kind> {
        let count = 1 + self.random.below(ROW);
        let memory = region(2 * CELL * count as usize)?;
        let (mut open, mut expected) = (Vec::new(), Vec::new());
        for at in 0..count as usize {
            let slices = [0, CELL].map(|part| memory.slice(2 * CELL * at + part, CELL));
            let [Some(by), Some(old)] = slices else {
                return Err(wrong("a slice of a region".to_owned()));
            };
            by.write(0, &1_u64.to_le_bytes());
            let fetches = self.random.below(3) > 0;
            let cell = (CELL * self.rank as usize) as u64;
            match end.add(to, cell, [by, old], fetches) {
                Ok(None) => break,
                Ok(Some(request)) => open.push((at, request)),
                Err(trouble) => {
                    self.failed(to, trouble)?;
                    break;
                }
            }
            expected.push(fetches.then_some(self.added[to as usize]));
            self.added[to as usize] += 1;
        }
        self.exchange = Some(Exchange {
            to,
            stage: Stage::Adds(expected),
            open,
            memory,
            back: None,
        });
        Ok(())
    }

    fn start_put<E: OneSided<Request = R>>(&mut self, end: &mut E, to: u32) -> Result<(), Kind> {
        let top = [64, 2_000, 20_000, LONGEST][self.random.below(4) as usize];
        let length = 1 + self.random.below(top) as usize;
        let memory = region(length)?;
        let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        memory.whole().write(0, &bytes);
        let whole = memory.slice(0, length).unwrap_or_else(|| memory.whole());
        let at = block(self.rank, self.added.len());
        let request = match end.put(to, at, whole) {
            Ok(None) => return Ok(()),
            Ok(Some(request)) => request,
            Err(trouble) => return self.failed(to, trouble),
        };
        self.bytes += 2 * length as u64;
        self.exchange = Some(Exchange {
            to,
            stage: Stage::Put,
            open: vec![(0, request)],
            memory,
            back: None,
        });
        Ok(())
    }

    /// An operation has failed: but for the loss of its peer, that is a finding.
    fn failed(&mut self, to: u32, trouble: Trouble) -> Result<(), Kind> {
        match trouble {
            Trouble::Lost(rank) if rank == to => {
                self.lost[to as usize] = true;
                Ok(())
            }
            other => Err(wrong(format!("rank {} at {to}: {other:?}", self.rank))),
        }
    }

    /// Looks at what is under way, and goes on with it.
    fn look<E: OneSided<Request = R>>(&mut self, end: &mut E) -> Result<(), Kind> {
        let Some(mut exchange) = self.exchange.take() else {
            return Ok(());
        };
        let mut still = Vec::new();
        for (at, mut request) in std::mem::take(&mut exchange.open) {
            match end.test(&mut request) {
                None => still.push((at, request)),
                Some(Ended::Well(_)) => self.ended(&exchange, at)?,
                Some(Ended::Badly(trouble)) => self.failed(exchange.to, trouble)?,
                Some(Ended::Cancelled) => return Err(wrong("it was cancelled".to_owned())),
            }
        }
        exchange.open = still;
        if !exchange.open.is_empty() {
            self.exchange = Some(exchange);
            return Ok(());
        }
        if !self.lost[exchange.to as usize] && matches!(exchange.stage, Stage::Put) {
            return self.get_back(end, exchange);
        }
        Ok(())
    }

    /// Checks what an operation has returned.
    fn ended(&self, exchange: &Exchange<R>, at: usize) -> Result<(), Kind> {
        let (rank, to) = (self.rank, exchange.to);
        match (&exchange.stage, &exchange.back) {
            (Stage::Adds(expected), _) => {
                let found = word(&exchange.memory.whole(), 2 * at + 1);
                match expected[at] {
                    Some(wanted) if wanted < found => Err(Kind::Twice(format!(
                        "rank {rank} at {to}: {found}, and not {wanted}"
                    ))),
                    Some(wanted) if wanted > found => Err(Kind::Misordered(format!(
                        "rank {rank} at {to}: {found}, and not {wanted}"
                    ))),
                    _ => Ok(()),
                }
            }
            (Stage::Get, Some(back)) => match same(&exchange.memory, back) {
                true => Ok(()),
                false => Err(Kind::Corrupt(format!(
                    "what rank {rank} has put at {to} does not come back"
                ))),
            },
            _ => Ok(()),
        }
    }

    /// The bytes are there.
    fn get_back<E: OneSided<Request = R>>(
        &mut self,
        end: &mut E,
        mut exchange: Exchange<R>,
    ) -> Result<(), Kind> {
        let back = region(exchange.memory.len())?;
        let at = block(self.rank, self.added.len());
        match end.get(exchange.to, at, back.whole()) {
            // Then at the next step.
            Ok(None) => {}
            Ok(Some(request)) => {
                exchange.open.push((0, request));
                (exchange.stage, exchange.back) = (Stage::Get, Some(back));
            }
            Err(trouble) => return self.failed(exchange.to, trouble),
        }
        self.exchange = Some(exchange);
        Ok(())
    }
}

/// Whether two pieces of memory have the same bytes.
fn same(one: &Region, other: &Region) -> bool {
    let [mut left, mut right] = [one, other].map(|memory| vec![0; memory.len()]);
    one.whole().copy_to(0, &mut left);
    other.whole().copy_to(0, &mut right);
    left == right
}
