//! What one rank has received, against what was sent to it.
//!
//! Receives are judged in the order in which they were posted, whatever the order of their ends. Two rules
//! make the matching order of one sender: of two receives that a message could have matched, it matched the
//! one posted first; of two messages that a receive could have matched, it matched the one sent first. Both
//! together: when a receive got message `n`, no earlier receive that would also have taken it may have got a
//! later message of the same sender. And what has one tag comes in the order of sending, so that messages too
//! short to carry a number have one all the same.
//!
//! A sender may die. Then messages of it may be missing, but no more than receives ended for that reason
//! after they had been matched; what came of it is judged as before.

use std::collections::{HashMap, VecDeque};

use doorbell_fabric::memory::SharedBytes;
use doorbell_pml::{Rank, Source};

use crate::failure::Kind;
use crate::plan::{Message, Plan};

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) from: Source,
    pub(crate) context: u16,
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
    /// Cancelled, or ended with the sender that it was for.
    Nothing,
    Got {
        from: u32,
        tag: u64,
        message: Option<Message>,
        short: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct Sender {
    /// Numbers not received yet, by context and tag, in the order of sending.
    waiting: HashMap<(u16, u64), VecDeque<u32>>,
    /// The highest number that a receive of this context with these tag bits got.
    highest: HashMap<(u16, u64, u64), u32>,
    /// Messages that will come.
    left: usize,
    /// It has died: how many receives ended with it and may have been matched.
    lost: Option<usize>,
}

/// The books of one rank.
#[derive(Debug)]
pub(crate) struct Books {
    rank: u32,
    senders: Vec<Sender>,
    receives: VecDeque<Receive>,
    /// Receives that have been judged.
    judged: u64,
    /// Messages that will come, of all who are not lost.
    pub(crate) left: usize,
}

impl Books {
    pub(crate) fn new(plan: &Plan, rank: u32, ranks: u32) -> Self {
        let sender = |from| {
            let mut sender = Sender::default();
            for message in plan.pair(from, rank) {
                sender
                    .waiting
                    .entry((message.context, message.tag))
                    .or_default()
                    .push_back(message.number);
            }
            sender.left = plan.pair(from, rank).len();
            sender
        };
        Self {
            rank,
            senders: (0..ranks).map(sender).collect(),
            receives: VecDeque::new(),
            judged: 0,
            left: plan.expected(rank),
        }
    }

    /// A sender is lost: nothing of it has to come any more. Whether that is news.
    pub(crate) fn give_up(&mut self, from: u32) -> bool {
        let sender = &mut self.senders[from as usize];
        if sender.lost.is_some() {
            return false;
        }
        sender.lost = Some(0);
        self.left -= std::mem::take(&mut sender.left);
        true
    }

    /// Whether a sender is lost.
    pub(crate) fn any_lost(&self) -> bool {
        self.senders.iter().any(|sender| sender.lost.is_some())
    }

    /// A receive was posted; returns its name here.
    pub(crate) fn posted(&mut self, spec: Spec) -> u64 {
        self.receives.push_back(Receive { spec, end: None });
        self.judged + self.receives.len() as u64 - 1
    }

    /// It was cancelled.
    pub(crate) fn cancelled(&mut self, plan: &Plan, receive: u64) -> Result<(), Kind> {
        self.ended(plan, receive, End::Nothing)
    }

    /// It has ended with its sender.
    pub(crate) fn lost(&mut self, plan: &Plan, receive: u64, from: u32) -> Result<(), Kind> {
        self.give_up(from);
        if let Some(lost) = &mut self.senders[from as usize].lost {
            *lost += 1;
        }
        self.ended(plan, receive, End::Nothing)
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
        let sender = &mut self.senders[from as usize];
        if sender.lost.is_none() {
            let Some(left) = sender.left.checked_sub(1) else {
                return Err(Kind::Twice(format!(
                    "rank {} got one more than were sent by rank {from}",
                    self.rank
                )));
            };
            sender.left = left;
            self.left -= 1;
        }
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
        sender.skip(
            plan.pair(from, rank),
            (spec.context, tag),
            message.as_ref(),
            &short,
            plan,
        );
        let next = sender
            .waiting
            .get_mut(&(spec.context, tag))
            .and_then(VecDeque::pop_front);
        let Some(number) = next else {
            let text = format!("rank {rank}: one more than were sent by rank {from} with tag {tag:x}");
            return Err(Kind::Twice(text));
        };
        match message {
            None => plan
                .compare(&plan.pair(from, rank)[number as usize], SharedBytes::of(&short))
                .map_err(Kind::Corrupt)?,
            Some(message) if (message.context, message.tag) != (spec.context, tag) => {
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
            if let Some(&high) = sender.highest.get(&(spec.context, ignore, tag & !ignore))
                && high > number
            {
                let text = format!(
                    "rank {rank}: number {number} of rank {from}, tag {tag:x}, should have matched an earlier receive \
                     (ignoring {ignore:x}), which got number {high}"
                );
                return Err(Kind::Misordered(text));
            }
        }
        let highest = sender
            .highest
            .entry((spec.context, spec.ignore, spec.tag & !spec.ignore))
            .or_default();
        *highest = number.max(*highest);
        Ok(())
    }

    /// What has not come, at most ten of it.
    pub(crate) fn missing(&self, plan: &Plan) -> String {
        let numbers = |(from, sender): (u32, &Sender)| {
            let mut numbers: Vec<u32> = sender.waiting.values().flatten().copied().collect();
            numbers.sort_unstable();
            if sender.lost.is_some() {
                numbers.clear();
            }
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

impl Sender {
    /// Passes over messages of a lost sender that were matched and did not arrive.
    fn skip(
        &mut self,
        sent: &[Message],
        key: (u16, u64),
        message: Option<&Message>,
        short: &[u8],
        plan: &Plan,
    ) {
        let (Some(lost), Some(waiting)) = (&mut self.lost, self.waiting.get_mut(&key)) else {
            return;
        };
        let is = |number: u32| match message {
            Some(message) => message.number == number,
            None => plan
                .compare(&sent[number as usize], SharedBytes::of(short))
                .is_ok(),
        };
        let Some(missing) = waiting.iter().position(|number| is(*number)) else {
            return;
        };
        if missing <= *lost {
            *lost -= missing;
            waiting.drain(..missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mix, bytes_of, tag};

    const ALL: Spec = Spec {
        from: Source::Any,
        context: 0,
        tag: 0,
        ignore: u64::MAX,
    };

    struct Desk {
        plan: Plan,
        books: Books,
    }

    /// Two hundred messages from rank 0 to rank 1.
    fn desk() -> Desk {
        let plan = Plan::new(5, 2, 400, Mix::PLAIN);
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

        /// Returns the first message from `from` on that is long enough for a stamp.
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
        assert_eq!((desk.books.left, desk.books.judged), (0, all as u64));
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
            context: 0,
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
    fn of_a_lost_sender_what_was_matched_may_be_missing_and_nothing_else() {
        let mut desk = desk();
        let names: Vec<u64> = (0..3).map(|_| desk.books.posted(ALL)).collect();
        desk.books.lost(&desk.plan, names[0], 0).unwrap();
        assert_eq!(desk.books.left, 0);
        desk.give(names[1], 1).unwrap();
        let wrong = desk.give(names[2], 0);
        assert!(wrong.is_err(), "{wrong:?}");

        let mut desk = self::desk();
        let same = |desk: &Desk, from: usize| {
            let all = desk.plan.pair(0, 1);
            let tag = all[from].tag;
            (from + 1..all.len())
                .find(|&at| all[at].tag == tag && all[at].length >= 16)
                .unwrap()
        };
        let (receive, later) = (desk.books.posted(ALL), same(&desk, 0));
        desk.books.give_up(0);
        let wrong = desk.give(receive, later);
        assert!(matches!(wrong, Err(Kind::Misordered(_))), "{wrong:?}");
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
