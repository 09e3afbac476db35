//! The messages of a job: source and destination, how long, under which tag, and every byte of them.
//!
//! A message of 16 bytes or more begins with a stamp (source, destination, which one, and a checksum of
//! that); the rest of it is a piece of one table of random bytes, at a place that depends on the stamp: no
//! piece fits in another place.

use doorbell_fabric::memory::SharedBytes;
use doorbell_sim::Random;

/// The longest message, in bytes.
pub(crate) const MOST: usize = 1 << 20;
const STAMP: usize = 16;
/// Bytes that are compared at a time: they stay in the cache.
const PIECE: usize = 8 * 1024;
/// Places in the table at which a message's bytes may begin.
const PLACES: u64 = 1 << 16;
/// Contexts of a job, at most.
pub(crate) const CONTEXTS: u16 = 2;
/// Tags of a job: few, so that they meet; of the whole width, as users' are.
const TAGS: u64 = 8;

/// One message; its number counts those of one sender to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) number: u32,
    pub(crate) length: usize,
    pub(crate) context: u16,
    pub(crate) tag: u64,
    pub(crate) synchronous: bool,
}

/// What there is among the messages beside the ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    /// How many of 16 messages have no byte.
    pub(crate) empty: u64,
    /// Ranks send to themselves, too.
    pub(crate) to_self: bool,
    /// Contexts, 1 at least.
    pub(crate) contexts: u64,
}

impl Mix {
    /// Ordinary messages only.
    pub(crate) const PLAIN: Self = Self {
        empty: 0,
        to_self: false,
        contexts: 1,
    };
}

/// All messages of a job.
#[derive(Debug)]
pub(crate) struct Plan {
    seed: u64,
    ranks: u32,
    /// By sender, in the order of sending.
    pub(crate) by_sender: Vec<Vec<Message>>,
    /// By sender and receiver, in the order of their numbers.
    by_pair: Vec<Vec<Message>>,
    table: Vec<u8>,
}

impl Plan {
    pub(crate) fn new(seed: u64, ranks: u32, messages: usize, mix: Mix) -> Self {
        let mut random = Random::for_part(seed, &[2]);
        let mut plan = Self {
            seed,
            ranks,
            by_sender: vec![Vec::new(); ranks as usize],
            by_pair: vec![Vec::new(); (ranks * ranks) as usize],
            table: (0..(MOST as u64 + PLACES) / 8)
                .flat_map(|_| random.next_u64().to_le_bytes())
                .collect(),
        };
        for _ in 0..messages {
            let from = random.below(ranks.into()) as u32;
            let others = u64::from(ranks) - u64::from(!mix.to_self);
            let to = (from + 1 + random.below(others) as u32) % ranks;
            // Every power of two is as likely as every other.
            let top = 1_u64 << random.below(20);
            let mut message = Message {
                from,
                to,
                number: plan.pair(from, to).len() as u32,
                length: (top + random.below(top) + random.below(2)) as usize,
                context: 0,
                tag: tag(random.below(TAGS)),
                synchronous: random.below(16) == 0,
            };
            if mix != Mix::PLAIN {
                message.context = random.below(mix.contexts) as u16;
                let empty = random.below(16) < mix.empty;
                message.length = if empty { 0 } else { message.length };
            }
            plan.by_sender[from as usize].push(message);
            plan.by_pair[(from * ranks + to) as usize].push(message);
        }
        plan
    }

    /// The messages of one sender to one receiver.
    pub(crate) fn pair(&self, from: u32, to: u32) -> &[Message] {
        &self.by_pair[(from * self.ranks + to) as usize]
    }

    /// How many messages a rank will receive.
    pub(crate) fn expected(&self, rank: u32) -> usize {
        (0..self.ranks).map(|from| self.pair(from, rank).len()).sum()
    }

    /// Bytes of all messages.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_sender
            .iter()
            .flatten()
            .map(|message| message.length as u64)
            .sum()
    }

    fn stamp(&self, message: &Message) -> [u64; 2] {
        let name = u64::from(message.from) << 48 | u64::from(message.to) << 32 | u64::from(message.number);
        [name, Random::for_part(self.seed, &[3, name]).next_u64()]
    }

    /// Writes the bytes of a message, piece by piece, each at its place.
    pub(crate) fn fill(&self, message: &Message, mut write: impl FnMut(usize, &[u8])) {
        let [name, sum] = self.stamp(message);
        let stamp = [name, sum].map(u64::to_le_bytes);
        let head = if message.length >= STAMP {
            stamp.as_flattened()
        } else {
            &[]
        };
        write(0, head);
        write(head.len(), self.rest(message, sum));
    }

    /// What follows the stamp; all of a message that is too short for one.
    fn rest(&self, message: &Message, sum: u64) -> &[u8] {
        let stamp = if message.length >= STAMP { STAMP } else { 0 };
        let at = (sum % PLACES) as usize;
        &self.table[at..at + message.length - stamp]
    }

    /// Returns the message that these bytes of `from` to `to` are by their stamp; `None` for those too short
    /// for one.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn read(&self, from: u32, to: u32, bytes: SharedBytes<'_>) -> Result<Option<Message>, String> {
        let (Some(name), Some(sum)) = (bytes.read(0), bytes.read(8)) else {
            return Ok(None);
        };
        let (name, sum) = (u64::from_le_bytes(name), u64::from_le_bytes(sum));
        let number = name as u32;
        let message = *self
            .pair(from, to)
            .get(number as usize)
            .ok_or_else(|| format!("a message {number} from {from} to {to}, which was never sent"))?;
        if self.stamp(&message) != [name, sum] {
            return Err(format!(
                "a stamp that was never written, {name:x} {sum:x}, from {from} to {to}"
            ));
        }
        self.compare(&message, bytes)?;
        Ok(Some(message))
    }

    /// Whether these are the bytes of `message`, all of them and no other.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn compare(&self, message: &Message, bytes: SharedBytes<'_>) -> Result<(), String> {
        if bytes.len() != message.length {
            return Err(format!("{message:?} has come with {} bytes", bytes.len()));
        }
        let (mut wrong, mut piece) = (None, [0; PIECE]);
        self.fill(message, |start, sent| {
            for (n, sent) in (0..).zip(sent.chunks(PIECE)) {
                let came = &mut piece[..sent.len()];
                let at = start + n * PIECE;
                bytes.copy_to(at, came);
                if came != sent && wrong.is_none() {
                    wrong = (0..sent.len()).find(|&i| came[i] != sent[i]).map(|i| at + i);
                }
            }
        });
        match wrong {
            None => Ok(()),
            Some(at) => Err(format!("{message:?}: wrong from byte {at} on")),
        }
    }
}

/// The `n`th tag.
pub(crate) fn tag(n: u64) -> u64 {
    0x5eed_0000_0000_0000 | (n & 6) << 20 | n & 1
}

/// All bytes of a message.
#[cfg(test)]
pub(crate) fn bytes_of(plan: &Plan, message: &Message) -> Vec<u8> {
    let mut bytes = vec![0; message.length];
    plan.fill(message, |at, piece| {
        bytes[at..at + piece.len()].copy_from_slice(piece)
    });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_itself_and_no_other() {
        let plan = Plan::new(1, 3, 2_000, Mix::PLAIN);
        assert_eq!(plan.by_sender.iter().map(Vec::len).sum::<usize>(), 2_000);
        let mut long = 0;
        for message in plan.by_sender.iter().flatten() {
            let mut bytes = bytes_of(&plan, message);
            let read = |from, to, bytes: &[u8]| plan.read(from, to, SharedBytes::of(bytes));
            let compare = |bytes: &[u8]| plan.compare(message, SharedBytes::of(bytes));
            let known = (message.length >= STAMP).then_some(*message);
            assert_eq!(read(message.from, message.to, &bytes), Ok(known));
            compare(&bytes).unwrap();
            assert!(message.length <= MOST && message.length > 0);
            long += usize::from(message.length > MOST / 2);
            for at in [message.length - 1, message.length / 2, 0] {
                bytes[at] ^= 1;
                assert!(compare(&bytes).is_err());
                assert!(known.is_none() || read(message.from, message.to, &bytes).is_err());
                bytes[at] ^= 1;
            }
            assert!(known.is_none() || read(message.to, message.from, &bytes).is_err());
            bytes.pop();
            assert!(compare(&bytes).is_err());
        }
        assert!(
            (50..150).contains(&long),
            "one of twenty has more than half a MiB: {long}"
        );
    }
}
