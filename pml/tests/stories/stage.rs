//! Plays one script: sets the stage, then does it line by line. The words are explained in `main.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{OpError, PeerIndex};
use doorbell_fabric::time::Time;
use doorbell_pml::{Aborted, Payload, Pml, Rank, RequestId, SendArgs, SendMode, Sent, Source};

use crate::air::{Air, Link};
use crate::rail::StoryRail;
use crate::setting::Setting;

/// What went wrong, in words.
pub(crate) type Told = Result<(), String>;

/// Passes of progress after each line, at most: more means that something spins.
const PASSES: usize = 500;

/// A message of the story: its send, its receive, and their memory.
pub(crate) struct Tale {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: Option<(usize, Sent)>,
    pub(crate) received: Option<(usize, RequestId)>,
    pub(crate) room: MutLoan,
}

pub(crate) struct Stage {
    setting: Setting,
    pub(crate) pmls: Vec<Pml<StoryRail>>,
    pub(crate) air: Rc<RefCell<Air>>,
    now: Time,
    pub(crate) tales: BTreeMap<String, Tale>,
}

/// Plays a script; the error names the line.
pub(crate) fn play(file: &str, script: &str) {
    let mut stage = Stage::new();
    let lines: Vec<&str> = script.lines().collect();
    let mut loops: Vec<(usize, u32)> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let words: Vec<&str> = lines[at]
            .split('#')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let told = match words[..] {
            [] => Ok(()),
            ["repeat", times] => number(times).map(|times| loops.push((at, times))),
            ["end"] => {
                let (start, left) = loops.last_mut().expect("`end` closes a `repeat`");
                *left -= 1;
                if *left > 0 {
                    at = *start;
                } else {
                    loops.pop();
                }
                Ok(())
            }
            _ => stage.act(&words),
        };
        if let Err(why) = told {
            panic!("{file}:{}: {}\n  {why}\n{}", at + 1, lines[at], stage.tell());
        }
        at += 1;
    }
    assert!(
        script.lines().any(|line| line.trim() == "expect nothing left"),
        "{file} does not expect that nothing is left"
    );
}

pub(crate) fn number<N: std::str::FromStr>(word: &str) -> Result<N, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}

/// Immediate data, or `none`.
pub(crate) fn data_of(word: &str) -> Result<Option<u64>, String> {
    match word {
        "none" => Ok(None),
        data => number(data).map(Some),
    }
}

/// The two ends of a link, as in `0->1`.
fn ends_of(word: &str) -> Result<(usize, usize), String> {
    let (from, to) = word.split_once("->").ok_or(format!("`{word}` is no direction"))?;
    Ok((number(from)?, number(to)?))
}

pub(crate) fn ensure(so: bool, otherwise: impl FnOnce() -> String) -> Told {
    if so { Ok(()) } else { Err(otherwise()) }
}

impl Stage {
    fn new() -> Self {
        Self {
            setting: Setting::default(),
            pmls: Vec::new(),
            air: Rc::default(),
            now: Time::from_nanos(1000),
            tales: BTreeMap::new(),
        }
    }

    /// A line, and what the ranks make of it.
    fn act(&mut self, words: &[&str]) -> Told {
        match *words {
            ["unseen", ref rest @ ..] => self.happen(rest),
            _ => {
                self.happen(words)?;
                self.pump()
            }
        }
    }

    fn happen(&mut self, words: &[&str]) -> Told {
        if self.pmls.is_empty() && self.setting.sets(words)? {
            return Ok(());
        }
        self.open();
        match *words {
            [rank, "send", to, "tag", tag, "length", length, "as", name] => {
                self.send(number(rank)?, number(to)?, number(tag)?, number(length)?, name)?;
            }
            [rank, "receive", from, "tag", tag, "length", length, "as", name] => {
                self.receive(number(rank)?, from, number(tag)?, number(length)?, name)?;
            }
            [rank, "data", data, "to", to] => {
                let (to, data) = (Rank(number(to)?), data_of(data)?);
                let set = self.pmls[number::<usize>(rank)?].set_immediate(to, data);
                set.map_err(|error| error.to_string())?;
            }
            [rank, "forget", peer] => self.pmls[number::<usize>(rank)?].forget(Rank(number(peer)?)),
            [rank, "abort", name, "->", end] => self.abort(number(rank)?, name, end)?,
            ["deliver", "rail", rail, direction, ref what @ ..] => {
                let at = self.find(link(rail, direction)?, what, false)?;
                self.air.borrow_mut().arrive(at);
                self.air.borrow_mut().complete(at);
            }
            ["deliver", "all", "rail", rail, direction, ref what @ ..] => {
                let link = link(rail, direction)?;
                while let Ok(at) = self.find(link, what, false) {
                    self.air.borrow_mut().arrive(at);
                    self.air.borrow_mut().complete(at);
                }
            }
            ["arrive", "rail", rail, direction, ref what @ ..] => {
                let at = self.find(link(rail, direction)?, what, false)?;
                self.air.borrow_mut().arrive(at);
            }
            ["complete", "rail", rail, direction, ref what @ ..] => {
                let at = self.find(link(rail, direction)?, what, true)?;
                self.air.borrow_mut().complete(at);
            }
            ["duplicate", "rail", rail, direction, ref what @ ..] => {
                let at = self.find(link(rail, direction)?, what, false)?;
                self.air.borrow_mut().arrive(at);
                self.air.borrow_mut().flying[at].arrived = false;
            }
            ["drop", "rail", rail, direction, ref what @ ..] => {
                let at = self.find(link(rail, direction)?, what, false)?;
                self.air.borrow_mut().flying.remove(at);
            }
            ["hold", "rail", rail, direction, ref what @ .., "as", name] => {
                let at = self.find(link(rail, direction)?, what, false)?;
                self.air.borrow_mut().flying[at].held = Some(name.to_string());
            }
            ["release", name] => self.release(name)?,
            ["fail", "rail", rail, direction, ref what @ .., "as", error] => {
                let at = match *what {
                    [name] if self.held(name).is_some() => self.held(name).unwrap_or(0),
                    _ => self.find(link(rail, direction)?, what, false)?,
                };
                self.air.borrow_mut().fail(at, op_error(error)?);
            }
            ["break", "rail", rail, "at", rank, ref how @ ..] => {
                self.break_rail(number(rail)?, number(rank)?, how)?
            }
            ["full", "rail", rail, "at", rank] => {
                let end = (number(rail)?, number(rank)?);
                self.air.borrow_mut().full.insert(end);
            }
            ["mute", "rail", rail, "at", rank] => {
                let end = (number(rail)?, number(rank)?);
                self.air.borrow_mut().mute.insert(end);
            }
            ["unmute", "rail", rail, "at", rank] => {
                let end = (number(rail)?, number(rank)?);
                self.air.borrow_mut().mute.remove(&end);
            }
            ["free", "rail", rail, "at", rank] => {
                let end = (number(rail)?, number(rank)?);
                self.air.borrow_mut().full.remove(&end);
            }
            ["poll", "at", rank] => {
                self.pmls[number::<usize>(rank)?].poll();
            }
            ["mend", "rail", rail, direction] => self.mend(link(rail, direction)?),
            ["settle"] => self.settle()?,
            ["settle", "for", time, "ms"] => {
                for _ in 0..number(time)? {
                    self.now += Duration::from_millis(1);
                    self.settle()?;
                }
            }
            ["wait", time, "ms"] => {
                for _ in 0..number(time)? {
                    self.now += Duration::from_millis(1);
                    self.pump()?;
                }
            }
            ["away", time, "ms"] => self.now += Duration::from_millis(number(time)?),
            ["reuse", name] => self.reuse(name)?,
            ["expect", ref what @ ..] => {
                self.pump()?;
                return self.expect(what);
            }
            _ => return Err("no such line".to_string()),
        }
        Ok(())
    }

    fn open(&mut self) {
        if self.pmls.is_empty() {
            self.pmls = self.setting.open(&self.air);
        }
    }

    /// Every rank progresses until none has anything to do.
    fn pump(&mut self) -> Told {
        for _ in 0..PASSES {
            self.now += Duration::from_nanos(1);
            let now = self.now;
            let turn = |pml: &mut Pml<_>| {
                let _ = pml.rails_mut(); // a quiet rail is looked at, too
                pml.progress(now)
            };
            if self.pmls.iter_mut().map(turn).sum::<usize>() == 0 {
                return Ok(());
            }
        }
        Err("the ranks never come to rest".to_string())
    }

    /// Everything that is on its way, and not held, arrives and is completed, and what follows from it, too.
    fn settle(&mut self) -> Told {
        for _ in 0..10_000 {
            self.pump()?;
            let mut air = self.air.borrow_mut();
            let open = |(rail, from, to): Link| !air.is_down((rail, to, from));
            let next = air
                .flying
                .iter()
                .position(|one| one.held.is_none() && open(one.link));
            let Some(at) = next else { return Ok(()) };
            if !air.flying[at].arrived {
                air.arrive(at);
            }
            air.complete(at);
        }
        Err("the conversation never ends".to_string())
    }

    /// The oldest on its way of those that a line describes.
    pub(crate) fn find(&self, link: Link, what: &[&str], arrived: bool) -> Result<usize, String> {
        let air = self.air.borrow();
        let wanted = |one: &crate::air::Flying| {
            one.link == link && one.held.is_none() && one.arrived == arrived && one.said().is(what)
        };
        let found = air.flying.iter().position(wanted);
        found.ok_or_else(|| {
            format!(
                "no such thing is {}",
                if arrived { "to be completed" } else { "on its way" }
            )
        })
    }

    fn held(&self, name: &str) -> Option<usize> {
        let air = self.air.borrow();
        air.flying
            .iter()
            .position(|one| one.held.as_deref() == Some(name))
    }

    fn release(&mut self, name: &str) -> Told {
        let at = self.held(name).ok_or("nothing is held under that name")?;
        let mut air = self.air.borrow_mut();
        air.flying[at].held = None;
        air.arrive(at);
        air.complete(at);
        Ok(())
    }

    fn break_rail(&mut self, rail: usize, rank: usize, how: &[&str]) -> Told {
        let mut peers: Vec<usize> = (0..self.setting.ranks).filter(|peer| *peer != rank).collect();
        let (mut kind, mut lingers, mut how) = (EventKind::PeerDown(DownReason::Silent), false, how);
        while !how.is_empty() {
            how = match *how {
                ["to", peer, ref rest @ ..] => {
                    peers = vec![number(peer)?];
                    rest
                }
                ["because", reason, ref rest @ ..] => {
                    kind = event(reason)?;
                    rest
                }
                ["keeping", "operations", ref rest @ ..] => {
                    lingers = true;
                    rest
                }
                _ => return Err(format!("no such way to break: {how:?}")),
            };
        }
        let mut air = self.air.borrow_mut();
        for peer in peers {
            air.break_end(rail, rank, peer, lingers);
            self.tell_event(&mut air, (rail, rank, peer), kind, Life::FIRST);
        }
        Ok(())
    }

    fn tell_event(&self, air: &mut Air, (rail, rank, peer): Link, kind: EventKind, life: Life) {
        let index = peer - usize::from(peer > rank);
        let event = RailEvent {
            at: self.now,
            scope: Scope::Peer(PeerIndex(index as u32)),
            kind,
            life,
        };
        air.events.entry((rail, rank)).or_default().push_back(event);
    }

    fn mend(&mut self, (rail, a, b): Link) {
        let mut air = self.air.borrow_mut();
        let life = air.mend(rail, a, b);
        self.tell_event(&mut air, (rail, a, b), EventKind::PeerUp, life);
        self.tell_event(&mut air, (rail, b, a), EventKind::PeerUp, life);
    }

    pub(crate) fn tale(&mut self, name: &str, length: usize) -> &mut Tale {
        let salt = name
            .bytes()
            .fold(7, |salt: u8, byte| salt.wrapping_mul(31).wrapping_add(byte));
        self.tales.entry(name.to_string()).or_insert_with(|| Tale {
            bytes: (0..length)
                .map(|at| (at / 7) as u8 ^ (at as u8).wrapping_mul(13) ^ salt)
                .collect(),
            sent: None,
            received: None,
            room: MutLoan::EMPTY,
        })
    }

    fn send(&mut self, rank: usize, to: u32, tag: u64, length: usize, name: &str) -> Told {
        let bytes = self.tale(name, length).bytes.clone();
        let args = SendArgs {
            to: Rank(to),
            context: 0,
            tag,
            payload: Payload::Loan(MutLoan::of_static(bytes.leak()).as_const()),
            mode: SendMode::Standard,
            notify: false,
        };
        let sent = self.pmls[rank].send(args).map_err(|error| error.to_string())?;
        self.tale(name, length).sent = Some((rank, sent));
        Ok(())
    }

    fn receive(&mut self, rank: usize, from: &str, tag: u64, length: usize, name: &str) -> Told {
        let from = match from {
            "any" => Source::Any,
            from => Source::Rank(Rank(number(from)?)),
        };
        let room = MutLoan::of_static(vec![0; length].leak());
        let request = self.pmls[rank].recv_loan(from, 0, tag, 0, room);
        let tale = self.tale(name, length);
        tale.room = room;
        tale.received = Some((rank, request.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn abort(&mut self, rank: usize, name: &str, end: &str) -> Told {
        let tale = &self.tales[name];
        let request = match (tale.sent, tale.received) {
            (Some((sender, Sent::Pending(id))), _) if sender == rank => id,
            (_, Some((receiver, id))) if receiver == rank => id,
            _ => return Err("it has no such request".to_string()),
        };
        let aborted = self.pmls[rank].abort(request);
        let wanted = if end == "wait" {
            Aborted::Wait
        } else {
            Aborted::Now
        };
        ensure(aborted == wanted, || format!("it is {aborted:?}"))
    }

    /// The user has its memory back, and puts something else there.
    fn reuse(&mut self, name: &str) -> Told {
        let room = self.tales[name].room;
        room.write(0, &vec![REUSED; room.len()]);
        Ok(())
    }
}

/// What the user writes into memory that it has back.
pub(crate) const REUSED: u8 = 0xee;

pub(crate) fn link(rail: &str, direction: &str) -> Result<Link, String> {
    let (from, to) = ends_of(direction)?;
    Ok((number(rail)?, from, to))
}

fn op_error(word: &str) -> Result<OpError, String> {
    Ok(match word {
        "denied" => OpError::Denied,
        "withdrawn" => OpError::Withdrawn,
        "not-done" => OpError::NotDone,
        "indeterminate" => OpError::Indeterminate,
        _ => return Err(format!("no operation ends as `{word}`")),
    })
}

fn event(word: &str) -> Result<EventKind, String> {
    Ok(match word {
        "silent" => EventKind::PeerDown(DownReason::Silent),
        "died" => EventKind::PeerDown(DownReason::Died),
        "closed" => EventKind::PeerDown(DownReason::Closed),
        "link" => EventKind::LinkDown,
        "device" => EventKind::DeviceGone,
        _ => return Err(format!("no rail breaks because of `{word}`")),
    })
}
