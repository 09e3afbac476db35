//! The states of the paths, seen from outside: both processes' counter files, read every few milliseconds.

use std::time::Duration;

use doorbell_fabric::counters::{Reader, Snapshot, Value, find};

use crate::links::lab::interface;

/// What both sides showed at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Duration,
    /// The state of each path, for each side: 0 is up, 1 suspect, from 2 on it is not used.
    pub(super) states: [Vec<u64>; 2],
    /// Bytes that the first side has sent over each.
    pub(super) bytes: Vec<u64>,
    /// Ways given up and taken back by both sides together.
    pub(super) downs: u64,
    pub(super) returns: u64,
}

/// All that was seen of one part.
pub(super) struct Watch {
    links: usize,
    processes: [u32; 2],
    readers: [Option<Reader>; 2],
    sought: Duration,
    pub(super) samples: Vec<Sample>,
}

/// How often the counter files are looked for while they are not there.
const SEEK: Duration = Duration::from_millis(100);
/// Samples of one part, at most: ten minutes of them.
const MOST: usize = 120_000;

impl Watch {
    pub(super) fn new(links: usize, processes: [u32; 2]) -> Self {
        Self {
            links,
            processes,
            readers: [None, None],
            sought: Duration::ZERO,
            samples: Vec::new(),
        }
    }

    pub(super) fn look(&mut self, at: Duration) {
        if self.readers.iter().any(Option::is_none) && at >= self.sought {
            self.sought = at + SEEK;
            self.seek();
        }
        let [Some(near), Some(far)] = &self.readers else {
            return;
        };
        if let (Ok(near), Ok(far)) = (near.read(), far.read())
            && self.samples.len() < MOST
        {
            self.samples.push(sample(self.links, at, [&near, &far]));
        }
    }

    fn seek(&mut self) {
        for path in find(None) {
            let Ok(reader) = Reader::open(&path) else { continue };
            let place = self
                .processes
                .iter()
                .position(|process| *process == reader.process());
            if let Some(place) = place.filter(|place| self.readers[*place].is_none()) {
                self.readers[place] = Some(reader);
            }
        }
    }
}

fn sample(links: usize, at: Duration, sides: [&Snapshot; 2]) -> Sample {
    let state = |side: usize, link| {
        let (rail, other) = (interface(link), 1 - side);
        number(sides[side], &format!("way.{other}.udp:{rail}/udp:{rail}.state"))
    };
    let both = |name: &str| sides.iter().map(|side| number(side, name)).sum();
    Sample {
        at,
        states: [0, 1].map(|side| (0..links).map(|link| state(side, link)).collect()),
        bytes: (0..links)
            .map(|link| number(sides[0], &format!("udp:{}.bytes_sent", interface(link))))
            .collect(),
        downs: both("pml.paths_down"),
        returns: both("pml.paths_returned"),
    }
}

fn number(snapshot: &Snapshot, name: &str) -> u64 {
    match snapshot.value(name) {
        Some(Value::Counter(value) | Value::Gauge(value)) => *value,
        _ => 0,
    }
}

impl Sample {
    /// Whether both sides use a way.
    pub(super) fn is_up(&self, link: usize) -> bool {
        self.states.iter().all(|side| side[link] < 2)
    }
}
