//! What one rank has received, against what was sent to it.
//!
//! Receives are judged in the order in which they were posted, whatever the order of their ends. Two rules make the
//! matching order of one sender: of two receives that a message could have met, it met the one posted first; of two
//! messages that a receive could have met, it met the one sent first. Both together: when a receive got message `n`,
//! no earlier receive that would also have taken it may have got a later message of the same sender. And what has one
//! tag comes in the order of sending, so that messages too short to carry a number have one all the same.

use std::collections::{HashMap, VecDeque};

use doorbell_fabric::memory::SharedBytes;
use doorbell_pml::{Rank, Source};

use crate::failure::Kind;
use crate::plan::{Message, Plan};

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) from: Source,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

/// Tag bits that receives ignore: none, the lowest, all.
pub(crate) const IGNORED: [u64; 3] = [0, 1, u64::MAX];

#[derive(Debug)]
struct Receive {
    spec: Spec,
    end: Option<End>,
}

#[derive(Debug)]
enum End {
    Cancelled,
    Got {
        from: u32,
        tag: u64,
        message: Option<Message>,
        short: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct Sender {
    /// Numbers not received yet, by tag, in the order of sending.
    waiting: HashMap<u64, VecDeque<u32>>,
    /// The highest number that a receive with these tag bits got.
    highest: HashMap<(u64, u64), u32>,
}

/// The books of one rank.
#[derive(Debug)]
pub(crate) struct Books {
    rank: u32,
    senders: Vec<Sender>,
    receives: VecDeque<Receive>,
    /// Receives that have been judged.
    judged: u64,
    /// Messages received.
    pub(crate) got: usize,
}

impl Books {
    pub(crate) fn new(plan: &Plan, rank: u32, ranks: u32) -> Self {
        let sender = |from| {
            let mut sender = Sender::default();
            for message in plan.pair(from, rank) {
                sender
                    .waiting
                    .entry(message.tag)
                    .or_default()
                    .push_back(message.number);
            }
            sender
        };
        Self {
            rank,
            senders: (0..ranks).map(sender).collect(),
            receives: VecDeque::new(),
            judged: 0,
            got: 0,
        }
    }

    /// A receive was posted; returns its name here.
    pub(crate) fn posted(&mut self, spec: Spec) -> u64 {
        self.receives.push_back(Receive { spec, end: None });
        self.judged + self.receives.len() as u64 - 1
    }

    /// It was cancelled.
    pub(crate) fn cancelled(&mut self, plan: &Plan, receive: u64) -> Result<(), Kind> {
        self.ended(plan, receive, End::Cancelled)
    }

    /// It got these bytes.
    pub(crate) fn received(
        &mut self,
        plan: &Plan,
        receive: u64,
        from: u32,
        tag: u64,
        bytes: SharedBytes<'_>,
    ) -> Result<(), Kind> {
        if from as usize >= self.senders.len() {
            return Err(Kind::Corrupt(format!(
                "rank {} got a message of rank {from}",
                self.rank
            )));
        }
        let message = plan.read(from, self.rank, bytes).map_err(Kind::Corrupt)?;
        let short = if message.is_none() {
            bytes.to_vec()
        } else {
            Vec::new()
        };
        self.got += 1;
        self.ended(
            plan,
            receive,
            End::Got {
                from,
                tag,
                message,
                short,
            },
        )
    }

    fn ended(&mut self, plan: &Plan, receive: u64, end: End) -> Result<(), Kind> {
        let at = (receive - self.judged) as usize;
        self.receives[at].end = Some(end);
        while let Some(Receive { end: Some(_), .. }) = self.receives.front() {
            let receive = self.receives.pop_front();
            self.judged += 1;
            if let Some(Receive { spec, end: Some(end) }) = receive {
                self.judge(plan, spec, end)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, plan: &Plan, spec: Spec, end: End) -> Result<(), Kind> {
        let End::Got {
            from,
            tag,
            message,
            short,
        } = end
        else {
            return Ok(());
        };
        let rank = self.rank;
        let wanted = spec.from == Source::Any || spec.from == Source::Rank(Rank(from));
        if !wanted || (spec.tag ^ tag) & !spec.ignore != 0 {
            let text = format!("rank {rank}: {spec:x?} got a message of rank {from} with tag {tag:x}");
            return Err(Kind::Misordered(text));
        }
        let sender = &mut self.senders[from as usize];
        let next = sender.waiting.get_mut(&tag).and_then(VecDeque::pop_front);
        let Some(number) = next else {
            let text = format!("rank {rank}: one more than were sent by rank {from} with tag {tag:x}");
            return Err(Kind::Twice(text));
        };
        match message {
            None => plan
                .compare(&plan.pair(from, rank)[number as usize], SharedBytes::of(&short))
                .map_err(Kind::Corrupt)?,
            Some(message) if message.tag != tag => {
                return Err(Kind::Corrupt(format!("{message:?} has come with tag {tag:x}")));
            }
            Some(message) if message.number < number => return Err(Kind::Twice(format!("{message:?}"))),
            Some(message) if message.number > number => {
                return Err(Kind::Misordered(format!(
                    "{message:?} has come instead of number {number}"
                )));
            }
            Some(_) => {}
        }
        for ignore in IGNORED {
            if let Some(&high) = sender.highest.get(&(ignore, tag & !ignore))
                && high > number
            {
                let text = format!(
                    "rank {rank}: number {number} of rank {from}, tag {tag:x}, should have met an earlier receive \
                     (ignoring {ignore:x}), which got number {high}"
                );
                return Err(Kind::Misordered(text));
            }
        }
        let highest = sender
            .highest
            .entry((spec.ignore, spec.tag & !spec.ignore))
            .or_default();
        *highest = number.max(*highest);
        Ok(())
    }

    /// What has not come, at most ten of it.
    pub(crate) fn missing(&self, plan: &Plan) -> String {
        let numbers = |(from, sender): (u32, &Sender)| {
            let numbers: Vec<u32> = sender.waiting.values().flatten().copied().collect();
            numbers
                .into_iter()
                .map(move |number| plan.pair(from, self.rank)[number as usize])
        };
        let missing: Vec<Message> = (0..).zip(&self.senders).flat_map(numbers).collect();
        let first: Vec<String> = missing
            .iter()
            .take(10)
            .map(|message| format!("\n  {message:?}"))
            .collect();
        format!(
            "rank {}: {} messages not judged yet, as{}",
            self.rank,
            missing.len(),
            first.concat()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{bytes_of, tag};

    const ALL: Spec = Spec {
        from: Source::Any,
        tag: 0,
        ignore: u64::MAX,
    };

    struct Desk {
        plan: Plan,
        books: Books,
    }

    /// Two hundred messages from rank 0 to rank 1.
    fn desk() -> Desk {
        let plan = Plan::new(5, 2, 400);
        let books = Books::new(&plan, 1, 2);
        Desk { plan, books }
    }

    impl Desk {
        fn bytes(&self, number: usize) -> (u64, Vec<u8>) {
            let message = &self.plan.pair(0, 1)[number];
            (message.tag, bytes_of(&self.plan, message))
        }

        fn give(&mut self, receive: u64, number: usize) -> Result<(), Kind> {
            let (tag, bytes) = self.bytes(number);
            self.books
                .received(&self.plan, receive, 0, tag, SharedBytes::of(&bytes))
        }

        /// A message from `from` on that is long enough to say which it is.
        fn long(&self, from: usize) -> usize {
            let all = self.plan.pair(0, 1);
            (from..all.len()).find(|&at| all[at].length >= 16).unwrap()
        }
    }

    #[test]
    fn everything_once_and_in_order_is_right_in_whatever_order_it_ends() {
        let mut desk = desk();
        let all = desk.plan.pair(0, 1).len();
        let names: Vec<u64> = (0..all).map(|_| desk.books.posted(ALL)).collect();
        for at in (0..all).rev() {
            desk.give(names[at], at).unwrap();
        }
        assert_eq!((desk.books.got, desk.books.judged), (all, all as u64));
        assert!(desk.books.missing(&desk.plan).contains(": 0 messages"));
    }

    #[test]
    fn a_message_that_overtakes_another_is_seen() {
        let mut desk = desk();
        let (first, second) = (desk.books.posted(ALL), desk.books.posted(ALL));
        // Number 1 came first, whatever their tags.
        let wrong = desk.give(first, 1).and_then(|()| desk.give(second, 0));
        assert!(wrong.is_err(), "{wrong:?}");

        let mut desk = self::desk();
        let exact = |desk: &Desk, number: usize| Spec {
            from: Source::Rank(Rank(0)),
            tag: desk.plan.pair(0, 1)[number].tag,
            ignore: 0,
        };
        let other = (1..)
            .find(|&at| exact(&desk, at).tag != exact(&desk, 0).tag)
            .unwrap();
        let first_of_tag = (0..=other)
            .find(|&at| exact(&desk, at).tag == exact(&desk, other).tag)
            .unwrap();
        let (one, two) = (exact(&desk, first_of_tag), exact(&desk, 0));
        let (one, two) = (desk.books.posted(one), desk.books.posted(two));
        desk.give(one, first_of_tag).unwrap();
        desk.give(two, 0).unwrap();
    }

    #[test]
    fn a_message_that_comes_twice_is_seen() {
        let mut desk = desk();
        let names: Vec<u64> = (0..200).map(|_| desk.books.posted(ALL)).collect();
        let long = desk.long(5);
        for (at, &name) in names.iter().take(long + 1).enumerate() {
            desk.give(name, at).unwrap();
        }
        let wrong = desk.give(names[long + 1], long);
        assert!(
            matches!(wrong, Err(Kind::Twice(_) | Kind::Misordered(_))),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_message_for_another_receive_or_with_wrong_bytes_is_seen() {
        let mut desk = desk();
        let tags: Vec<u64> = (0..8).map(tag).collect();
        let (own, mut bytes) = desk.bytes(0);
        let not = tags.iter().find(|&&tag| tag != own).unwrap();
        let receive = desk.books.posted(Spec {
            tag: *not,
            ignore: 0,
            ..ALL
        });
        assert!(matches!(desk.give(receive, 0), Err(Kind::Misordered(_))));

        let mut desk = self::desk();
        let receive = desk.books.posted(ALL);
        bytes[0] ^= 1;
        let wrong = desk
            .books
            .received(&desk.plan, receive, 0, own, SharedBytes::of(&bytes));
        assert!(matches!(wrong, Err(Kind::Corrupt(_))), "{wrong:?}");

        let mut desk = self::desk();
        let receive = desk.books.posted(ALL);
        desk.books.cancelled(&desk.plan, receive).unwrap();
        assert!(desk.books.missing(&desk.plan).contains("rank 1: "));
    }
}
