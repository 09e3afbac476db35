//! What a script may expect, and the error when it is not so.

use std::fmt::Write;

use doorbell_pml::{PmlError, Rank, Sent, Source};

use crate::stage::{REUSED, Stage, Told, data_of, ensure, link, number};

impl Stage {
    pub(crate) fn expect(&mut self, what: &[&str]) -> Told {
        match *what {
            ["wire", "rail", rail, direction, ref what @ ..] => {
                self.find(link(rail, direction)?, what, false).map(|_| ())
            }
            ["no", "wire", "rail", rail, direction, ref what @ ..] => {
                let found = self.find(link(rail, direction)?, what, false);
                ensure(found.is_err(), || "there is one".to_string())
            }
            ["sent", name, how] => self.expect_sent(name, how),
            ["received", name, how] => self.expect_received(name, how, None),
            ["received", name, how, "data", data] => self.expect_received(name, how, Some(data_of(data)?)),
            [name, "untouched"] => {
                let now = self.tales[name].room.as_shared().to_vec();
                let first = now.iter().position(|byte| *byte != REUSED);
                ensure(first.is_none(), || format!("byte {first:?} was written"))
            }
            [rank, "counter", name, value] => self.expect_counter(number(rank)?, name, number(value)?),
            [rank, "rail", rail, "to", peer, state] => {
                let report = self.pmls[number::<usize>(rank)?]
                    .peer(Rank(number(peer)?))
                    .unwrap();
                let is = report.paths[number::<usize>(rail)?].state.as_str();
                ensure(is == state, || format!("it is {is}"))
            }
            ["nothing", "left"] => self.expect_nothing_left(),
            _ => Err("no such expectation".to_string()),
        }
    }

    fn expect_sent(&mut self, name: &str, how: &str) -> Told {
        let (rank, sent) = self.tales[name]
            .sent
            .ok_or("it was not sent, or its end was seen already")?;
        let ended = match sent {
            Sent::Done => Some(Ok(())),
            Sent::Pending(id) => self.pmls[rank].test(id).map(|ended| ended.map(|_| ())),
        };
        if how != "waits" {
            self.tale(name, 0).sent = None;
        }
        judge(how, "ok", ended)
    }

    fn expect_received(&mut self, name: &str, how: &str, data: Option<Option<u64>>) -> Told {
        let (rank, id) = self.tales[name]
            .received
            .ok_or("it was not received, or its end was seen already")?;
        let ended = self.pmls[rank].test(id);
        let tale = self.tale(name, 0);
        if how != "waits" {
            tale.received = None;
        }
        if let Some(Ok(status)) = &ended {
            let got = tale.room.as_shared().to_vec();
            let wrong = (0..got.len()).find(|at| got[*at] != tale.bytes[*at]);
            ensure(wrong.is_none(), || format!("byte {wrong:?} is not what was sent"))?;
            ensure(data.is_none_or(|data| data == status.data), || {
                format!("{status:?}")
            })?;
            ensure(status.length == tale.bytes.len() as u64, || format!("{status:?}"))?;
        }
        judge(how, "whole", ended.map(|ended| ended.map(|_| ())))
    }

    /// Counters are found by their names in the debug output, which has each once.
    fn expect_counter(&self, rank: usize, name: &str, value: u64) -> Told {
        let all = format!("{:?}", self.pmls[rank].counters());
        let words: Vec<&str> = all
            .split([' ', ',', '{', '}'])
            .filter(|word| !word.is_empty())
            .collect();
        let at = words.iter().position(|word| word.strip_suffix(':') == Some(name));
        let at = at.ok_or_else(|| format!("no counter `{name}`"))?;
        ensure(words[at + 1].parse() == Ok(value), || {
            format!("it is {}", words[at + 1])
        })
    }

    fn expect_nothing_left(&mut self) -> Told {
        for (rank, pml) in self.pmls.iter_mut().enumerate() {
            let live = pml.live_requests();
            ensure(live == 0, || format!("rank {rank} has {live} requests"))?;
            let kept = pml.probe(Source::Any, 0, 0, u64::MAX);
            ensure(kept.is_none(), || format!("rank {rank} keeps {kept:?}"))?;
        }
        let unseen = self
            .tales
            .iter()
            .find(|(_, tale)| tale.sent.is_some() || tale.received.is_some());
        ensure(unseen.is_none(), || {
            format!("no line looked at the end of {:?}", unseen.map(|(name, _)| name))
        })?;
        let air = self.air.borrow();
        ensure(air.flying.is_empty(), || "something is on its way".to_string())?;
        ensure(air.exposures() == 0, || {
            format!("{} exposures are left", air.exposures())
        })
    }

    /// Everything that a reader needs who looks for the reason.
    pub(crate) fn tell(&self) -> String {
        let mut text = String::from("so far:\n");
        let air = self.air.borrow();
        for line in air.log.iter().rev().take(60).rev() {
            let _ = writeln!(text, "  {line}");
        }
        text.push_str("on its way:\n");
        for one in &air.flying {
            let (rail, from, to) = one.link;
            let held = one.held.as_deref().unwrap_or("-");
            let _ = writeln!(
                text,
                "  rail {rail} {from}->{to}  {}  held: {held}  arrived: {}",
                one.said(),
                one.arrived
            );
        }
        drop(air);
        for (name, tale) in &self.tales {
            for (rank, id) in tale
                .sent
                .into_iter()
                .filter_map(|(rank, sent)| match sent {
                    Sent::Pending(id) => Some((rank, id)),
                    Sent::Done => None,
                })
                .chain(tale.received)
            {
                let _ = match self.pmls[rank].explain(id) {
                    Some(explained) => writeln!(text, "{name}: {explained}"),
                    None => writeln!(text, "{name}: rank {rank} knows nothing of it any more"),
                };
            }
        }
        for pml in &self.pmls {
            let _ = writeln!(text, "{:?}", pml.counters());
        }
        text
    }
}

/// Whether a request ended as a script expects.
fn judge(how: &str, good: &str, ended: Option<Result<(), PmlError>>) -> Told {
    let fits = match (how, &ended) {
        ("waits", None) => true,
        ("lost", Some(Err(PmlError::PeerLost { .. }))) => true,
        ("aborted", Some(Err(PmlError::SendAborted { .. } | PmlError::StaleRequest(_)))) => true,
        (how, Some(Ok(()))) => how == good,
        _ => false,
    };
    ensure(fits, || match ended {
        None => "it waits".to_string(),
        Some(Ok(())) => "it ended well".to_string(),
        Some(Err(error)) => format!("it ended: {error}"),
    })
}
