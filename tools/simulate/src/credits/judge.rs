//! The judge of the economies: it keeps books of its own, and checks every rule about the two nodes of a
//! message when the message is handled. What a message does not touch cannot change by it; an audit of
//! everything, now and then and at the end, shows that it did not.

use doorbell_am::credit::{CreditState, Limits, Peers};

use super::paged::Paged;

pub(super) type Judged = Result<(), String>;

/// By the judge's own books, at a lender for each borrower.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Granted and not yet with the borrower.
    coming: u16,
    /// Given back and not yet with the lender.
    leaving: u16,
    /// Granted in the lender's epoch `epoch`.
    granted: u16,
    /// Given back since the borrower was last notified of an epoch's end.
    given_back: u16,
    /// Requests that stalled and have not arrived.
    stalled: u16,
    epoch: u16,
}

/// The books of one lender.
#[derive(Debug)]
struct Books {
    pairs: Paged<Pair>,
    total: u32,
    lent: u32,
    arrivals: u64,
}

#[derive(Debug)]
pub(super) struct Judge {
    books: Vec<Books>,
    limits: Limits,
    /// Looks at single pairs, and at everything.
    pub(super) looks: u64,
    pub(super) audits: u64,
}

impl Judge {
    pub(super) fn new<P: Peers>(nodes: &[CreditState<P>]) -> Self {
        let books = |node: &CreditState<P>| {
            let total = node.shares().total;
            Books {
                pairs: Paged::of(node.nodes(), |_| Pair::default()),
                total,
                lent: total - node.shares().banked,
                arrivals: 0,
            }
        };
        Self {
            books: nodes.iter().map(books).collect(),
            limits: nodes.first().map_or(Limits::DEFAULT, |node| *node.limits()),
            looks: 0,
            audits: 0,
        }
    }

    fn pair(&mut self, lender: u32, borrower: u32) -> Result<&mut Pair, String> {
        let pair = self.books[lender as usize].pairs.at_mut(borrower);
        pair.ok_or_else(|| format!("no pair {lender}, {borrower}"))
    }

    /// A request to `lender` waits.
    pub(super) fn stalled(&mut self, borrower: u32, lender: u32) -> Judged {
        self.pair(lender, borrower)?.stalled += 1;
        Ok(())
    }

    /// `borrower` requested `need` more from `lender`, which granted some.
    pub(super) fn arrived(&mut self, lender: u32, borrower: u32, need: u8, granted: u8) -> Judged {
        let (length, limit) = (u64::from(self.limits.epoch), self.limits.lend);
        let books = &mut self.books[lender as usize];
        books.arrivals += 1;
        // The epoch ends before the grant is decided. The sequence of 16 bits is enough to distinguish one
        // from the next.
        let epoch = (books.arrivals / length) as u16;
        books.lent += u32::from(granted);
        if need == 0 {
            return must(granted == 0, || {
                format!("{lender} granted {borrower}, which requested nothing, {granted}")
            });
        }
        let pair = self.pair(lender, borrower)?;
        if pair.stalled == 0 || granted > need {
            return Err(format!(
                "{lender} granted {granted} of {need} to {borrower}: {pair:?}"
            ));
        }
        pair.stalled -= 1;
        if pair.epoch != epoch {
            (pair.epoch, pair.granted) = (epoch, 0);
        }
        pair.granted += u16::from(granted);
        pair.coming += u16::from(granted);
        let granted = pair.granted;
        must(granted <= limit, || {
            format!("{lender} granted {borrower} {granted} credits in one epoch")
        })
    }

    /// A reply of `lender` is with the borrower.
    pub(super) fn replied(&mut self, borrower: u32, lender: u32, granted: u8) -> Judged {
        let pair = self.pair(lender, borrower)?;
        let left = pair.coming.checked_sub(granted.into());
        pair.coming = left.ok_or_else(|| format!("{borrower} got {granted} of {lender}: {pair:?}"))?;
        Ok(())
    }

    /// `borrower` gives back.
    pub(super) fn gave(&mut self, borrower: u32, lender: u32, give: u16) -> Judged {
        let limit = self.limits.revoke;
        let pair = self.pair(lender, borrower)?;
        pair.leaving += give;
        pair.given_back += give;
        let given = pair.given_back;
        must(given <= limit, || {
            format!("{borrower} gave {lender} {given} credits back in one epoch")
        })
    }

    /// `borrower` is notified that an epoch of `lender` ended.
    pub(super) fn epoch_ended(&mut self, borrower: u32, lender: u32) -> Judged {
        self.pair(lender, borrower)?.given_back = 0;
        Ok(())
    }

    /// `lender` has it back.
    pub(super) fn returned(&mut self, lender: u32, borrower: u32, give: u16) -> Judged {
        self.books[lender as usize].lent -= u32::from(give);
        let pair = self.pair(lender, borrower)?;
        let left = pair.leaving.checked_sub(give);
        pair.leaving = left.ok_or_else(|| format!("{lender} got {give} back of {borrower}: {pair:?}"))?;
        Ok(())
    }

    /// What always holds between a lender and a borrower, and of the lender's bank.
    #[inline]
    pub(super) fn look<P: Peers>(&mut self, nodes: &[CreditState<P>], lender: u32, borrower: u32) -> Judged {
        self.looks += 1;
        let books = &self.books[lender as usize];
        let (y, x) = (&nodes[lender as usize], &nodes[borrower as usize]);
        let pair = books.pairs.at(borrower);
        let (Some(pair), Some(ours), Some(theirs)) = (pair, y.peer(borrower), x.peer(lender)) else {
            return Err(format!("no pair {lender}, {borrower}"));
        };
        let (least, most) = (y.least(), self.limits.most_per_node);
        let holds = y.bank() + books.lent == books.total
            && ours.loan() == theirs.send() + pair.coming + pair.leaving
            && theirs.in_use() <= theirs.send()
            && theirs.in_use() <= theirs.peak()
            && ours.held() <= ours.loan()
            && theirs.send() >= least
            && ours.loan() >= least
            && ours.loan() <= most
            && ours.is_listed() == (ours.loan() > least)
            && y.revoking() <= u32::from(self.limits.fan_out);
        must(holds, || {
            format!(
                "{lender} lends {borrower}: {ours:?}; borrowed: {theirs:?}; {pair:?}; bank {}, lent {} of {}, {} revoking",
                y.bank(),
                books.lent,
                books.total,
                y.revoking()
            )
        })
    }

    /// Audits every account of every node, from the economies' own tables.
    pub(super) fn audit<P: Peers>(&mut self, nodes: &[CreditState<P>]) -> Judged {
        self.audits += 1;
        for (y, books) in nodes.iter().zip(&self.books) {
            let mut lent = 0;
            for borrower in (0..y.nodes()).filter(|&rank| rank != y.me()) {
                let loan = y.peer(borrower).map_or(0, |peer| peer.loan());
                lent += u32::from(loan);
            }
            must(lent == books.lent && lent + y.bank() == books.total, || {
                format!(
                    "{} lent {lent} and banks {} of {}; the books have {}",
                    y.me(),
                    y.bank(),
                    books.total,
                    books.lent
                )
            })?;
        }
        Ok(())
    }

    /// Audits every pair of nodes: at the end, and of few nodes.
    pub(super) fn audit_pairs<P: Peers>(&mut self, nodes: &[CreditState<P>]) -> Judged {
        for lender in 0..nodes.len() as u32 {
            for borrower in (0..nodes.len() as u32).filter(|&rank| rank != lender) {
                self.look(nodes, lender, borrower)?;
            }
        }
        Ok(())
    }
}

fn must(holds: bool, say: impl FnOnce() -> String) -> Judged {
    if holds { Ok(()) } else { Err(say()) }
}
